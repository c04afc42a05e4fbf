/* Pid 1 of a lab host: starts what its arguments say and reaps orphans.
 *
 * init COMMAND ARG...         starts the command once
 * init -l FD COMMAND ARG...   accepts on the inherited socket FD and starts the command
 *                             for each connection, with the connection as 0 and 1
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static void start(char **argv, int connection)
{
    if (fork() != 0)
        return;
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setsid();
    if (connection >= 0) {
        dup2(connection, 0);
        dup2(connection, 1);
    }
    execv(argv[0], argv);
    _exit(127);
}

int main(int argc, char **argv)
{
    int listener = -1;
    char **command = argv + 1;
    if (argc > 3 && strcmp(argv[1], "-l") == 0) {
        listener = atoi(argv[2]);
        fcntl(listener, F_SETFD, FD_CLOEXEC);
        command = argv + 3;
    }
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigprocmask(SIG_BLOCK, &set, NULL);
    int children = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (listener < 0)
        start(command, -1);
    for (;;) {
        struct pollfd fds[2] = {{children, POLLIN, 0}, {listener, POLLIN, 0}};
        if (poll(fds, listener < 0 ? 1 : 2, -1) < 0 && errno != EINTR)
            return 1;
        struct signalfd_siginfo info;
        while (read(children, &info, sizeof info) > 0)
            ;
        while (waitpid(-1, NULL, WNOHANG) > 0)
            ;
        if (listener >= 0 && (fds[1].revents & POLLIN)) {
            int connection = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
            if (connection >= 0) {
                start(command, connection);
                close(connection);
            }
        }
    }
}
