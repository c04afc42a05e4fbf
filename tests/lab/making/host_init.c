/* Pid 1 of a lab host: starts what its arguments say and reaps orphans.
 *
 * init COMMAND ARG...         starts the command once
 * init -l FD COMMAND ARG...   accepts on the inherited socket FD and starts the command
 *                             for each connection, with the connection as 0 and 1
 * init -k                     is the process with number 2: it does nothing for ever
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
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

static void be_second(char **argv)
{
    prctl(PR_SET_NAME, "kthreadd");
    memset(argv[0], 0, strlen(argv[0]));
    memset(argv[1], 0, strlen(argv[1])); /* a thread of the kernel has no command line */
    syscall(SYS_close_range, 0, ~0U, 0);
    for (;;)
        pause();
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "-k") == 0)
        be_second(argv);
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
