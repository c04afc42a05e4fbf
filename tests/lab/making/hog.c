/* A process that looks like CUDA in /proc and is charged with simulated GPU memory.
 *
 *   hog KIND GPU MIB [TITLE]   starts one and prints {"holders": [], "dead": [], "helpers": []}
 *   hog make-nodes             makes a second set of device nodes (needs root)
 *
 * The starter forks a launcher (or the holder itself), which leaves its session, and ends
 * when all of them said what they are through a pipe. Each process writes the signals that
 * it can see to /run/host/hogs/PID.log.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SECOND_DEV "/run/nvidia/driver/dev"
#define CHARGES "/run/nvml-sim/charges"
#define LOGS "/run/host/hogs"
#define PAD 512
#define MIB (1L << 20)

enum { FDS_GPU = 23, FDS_CTL = 2, FDS_UVM = 4, MAX_GPUS = 64, MAX_FDS = 4096 };

static const char *kind;
static int gpu;
static long mib;
static const char *title; /* NULL: the kind's own */
static char *title_area;
static size_t title_room;
static int tell = -1; /* to the starter */
static int driver_fds[MAX_FDS], driver_count;

static void die(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "hog: ");
    vfprintf(stderr, format, args);
    fprintf(stderr, "\n");
    va_end(args);
    _exit(1);
}

static int is(const char *name)
{
    return strcmp(kind, name) == 0;
}

/* What ps shows. Words become arguments, unless whole: then it is one, as setproctitle does. */
static void retitle(const char *text, int whole)
{
    char comm[16] = "";
    const char *end = strchrnul(text, whole ? '\0' : ' '), *start = end;
    while (start > text && (whole || start[-1] != '/'))
        start--;
    snprintf(comm, sizeof comm, "%.*s", (int)(end - start), start);
    prctl(PR_SET_NAME, comm);
    memset(title_area, 0, title_room);
    strncpy(title_area, text, title_room - 1);
    for (char *at = title_area; !whole && *at; at++)
        if (*at == ' ')
            *at = '\0';
}

static void say(const char *role, int pid)
{
    char line[64];
    int length = snprintf(line, sizeof line, "%s %d\n", role, pid);
    if (write(tell, line, length) != length)
        _exit(1);
}

/* Lets go of the ssh session; the starter may end. */
static void let_go(void)
{
    int null = open("/dev/null", O_RDWR);
    for (int fd = 0; fd < 3; fd++)
        dup2(null, fd);
    if (null > 2)
        close(null);
    close(tell);
    tell = -1;
}

/* ---- signals ---------------------------------------------------------------------- */

static int open_log(void)
{
    char path[64], old[80];
    snprintf(path, sizeof path, LOGS "/%d.log", getpid());
    snprintf(old, sizeof old, "%s.1", path);
    rename(path, old); /* an earlier process with this pid */
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0)
        die("%s: %s", path, strerror(errno));
    return fd;
}

static int harmless(int number)
{
    return number == SIGCHLD || number == SIGCONT || number == SIGURG || number == SIGWINCH ||
           number == SIGTSTP || number == SIGTTIN || number == SIGTTOU;
}

static void watch_signals(int log, int ignores, int reaps)
{
    sigset_t all;
    sigfillset(&all);
    for (;;) {
        siginfo_t info;
        int number = sigwaitinfo(&all, &info);
        if (number < 0)
            continue;
        if (number == SIGCHLD) {
            while (reaps && waitpid(-1, NULL, WNOHANG) > 0)
                ;
            continue;
        }
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        char line[96];
        const char *name = sigabbrev_np(number);
        int length = snprintf(line, sizeof line, "%s %ld.%03ld from %d\n", name ? name : "RT",
                              (long)now.tv_sec, now.tv_nsec / 1000000, (int)info.si_pid);
        if (write(log, line, length) < 0)
            continue;
        if (harmless(number) || (ignores && (number == SIGTERM || number == SIGINT ||
                                             number == SIGHUP)))
            continue;
        signal(number, SIG_DFL);
        sigset_t one;
        sigemptyset(&one);
        sigaddset(&one, number);
        pthread_sigmask(SIG_UNBLOCK, &one, NULL);
        syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), number);
    }
}

struct watch {
    int log, ignores, after_leader;
};

static void *watch_thread(void *given)
{
    struct watch *watch = given;
    while (watch->after_leader) { /* ready only when the main thread is a zombie */
        char path[64], text[256] = "";
        snprintf(path, sizeof path, "/proc/self/task/%d/stat", getpid());
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t got = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
        if (fd >= 0)
            close(fd);
        char *state = got > 0 ? strrchr(text, ')') : NULL;
        if (state && state[2] == 'Z') {
            say("holders", getpid());
            let_go();
            break;
        }
        usleep(500);
    }
    watch_signals(watch->log, watch->ignores, 0);
    return NULL;
}

static void start_watching(int ignores, int after_leader)
{
    static struct watch watch;
    pthread_t thread;
    watch = (struct watch){open_log(), ignores, after_leader};
    if (pthread_create(&thread, NULL, watch_thread, &watch))
        die("no thread");
}

/* ---- what CUDA looks like --------------------------------------------------------- */

static int open_node(const char *dev, const char *name, int times)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", dev, name);
    int fd = -1;
    for (int i = 0; i < times; i++) {
        fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
        if (fd < 0) {
            if (errno == ENOENT)
                return -1;
            die("%s: %s", path, strerror(errno));
        }
        if (driver_count < MAX_FDS)
            driver_fds[driver_count++] = fd;
    }
    return fd;
}

static void look_like_cuda(const char *dev, int close_files)
{
    char name[32];
    int found = 0;
    int ctl = open_node(dev, "nvidiactl", FDS_CTL);
    int uvm = open_node(dev, "nvidia-uvm", FDS_UVM);
    for (int i = 0; i < MAX_GPUS; i++) {
        snprintf(name, sizeof name, "nvidia%d", i);
        found += open_node(dev, name, FDS_GPU) >= 0;
    }
    if (ctl < 0 || uvm < 0 || !found)
        die("no GPU device nodes in %s", dev);
    for (int i = 0; i < 27; i++) { /* offsets differ so that neighbours stay apart */
        long size = i ? 2 * MIB : 18 * MIB;
        if (mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE, ctl, (i % 2) * 64 * MIB) ==
            MAP_FAILED)
            die("cannot map nvidiactl: %s", strerror(errno));
    }
    void *map = mmap(NULL, 2 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE, uvm, 0);
    if (map == MAP_FAILED || madvise(map, 2 * MIB, MADV_DONTFORK))
        die("cannot map nvidia-uvm: %s", strerror(errno));
    for (int i = 0; close_files && i < driver_count; i++)
        close(driver_fds[i]);
}

static unsigned long long own_start(void)
{
    char text[1024] = "";
    int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    if (fd < 0 || read(fd, text, sizeof text - 1) < 0)
        die("/proc/self/stat: %s", strerror(errno));
    close(fd);
    char *at = strrchr(text, ')');
    for (int field = 2; at && field < 22; field++)
        at = strchr(at + 1, ' ');
    return at ? strtoull(at, NULL, 10) : 0;
}

static void need_gpu(void)
{
    char line[1024], word[32];
    FILE *file = fopen("/run/nvml-sim/gpus", "re");
    int found = 0;
    snprintf(word, sizeof word, "index=%d", gpu);
    while (file && fgets(line, sizeof line, file))
        for (char *rest = line, *at; (at = strsep(&rest, " \t\n"));)
            found |= strcmp(at, word) == 0;
    if (!found)
        die("no GPU %d here", gpu);
    fclose(file);
}

/* A charge that no NVML here can tell would be a lab that answers wrongly. Unloaded again: the
 * holder shall not have the library mapped. No child is forked for it, since pids are counted. */
static void need_nvml(void)
{
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library || !dlsym(library, "nvmlInit_v2"))
        die("NVML cannot be loaded here: %s", dlerror());
    dlclose(library);
}

/* The file's lock lives as long as the driver's file would: over fork, not over exec. */
static void take_charge(const char *rule)
{
    char scratch[96], path[96];
    snprintf(scratch, sizeof scratch, CHARGES "/.%d-gpu%d", getpid(), gpu);
    snprintf(path, sizeof path, CHARGES "/%d-%llu-gpu%d", getpid(), own_start(), gpu);
    int fd = open(scratch, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0)
        die("%s: %s", scratch, strerror(errno));
    dprintf(fd, "gpu=%d bytes=%ld pid=%d start=%llu lists=compute gi=- ci=- rule=%s\n", gpu,
            mib * MIB, getpid(), own_start(), rule);
    fchmod(fd, 0644);
    if (flock(fd, LOCK_EX | LOCK_NB) || rename(scratch, path))
        die("%s: %s", path, strerror(errno));
}

/* ---- the kinds -------------------------------------------------------------------- */

static const char *own_title(void)
{
    if (title)
        return title;
    if (is("retitled"))
        return "VLLM::Worker_TP0";
    return is("forked-holder") ? "python3 loader.py" : "python3 train.py";
}

static void hold(void)
{
    int spares_gpu = is("bystander") && mib == 0;
    retitle(own_title(), is("retitled") || !strchr(own_title(), ' '));
    if (is("orphan") || is("leader-zombie"))
        setsid();
    if (!spares_gpu) {
        look_like_cuda(is("second-node") ? SECOND_DEV : "/dev", is("mapped"));
        take_charge(is("pinned") ? "linger:2.4" : "file");
    }
    if (is("pinned")) {
        char *pool = mmap(NULL, 64 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (pool == MAP_FAILED)
            die("no shared memory");
        memset(pool, 1, 64 * MIB);
    }
    start_watching(is("term-ignorer") || is("retitled"), is("leader-zombie"));
    if (is("leader-zombie"))
        syscall(SYS_exit, 0);
    if (!is("unit")) { /* a service keeps its output, and nobody waits for it */
        say(is("unreaped") ? "dead" : "holders", getpid());
        let_go();
    }
    for (;;)
        pause();
}

/* Parent of the holder in a session of its own. */
static void launch(void)
{
    int down[2], up[2], both[2];
    setsid();
    retitle("sh ./run.sh", 0);
    int log = open_log();
    int talks = is("retitled");
    if (talks && (pipe2(down, O_CLOEXEC) || pipe2(up, O_CLOEXEC) ||
                  socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, both)))
        die("no pipes");
    int worker = fork();
    if (worker < 0)
        die("fork: %s", strerror(errno));
    if (talks) {
        close(worker ? down[0] : down[1]);
        close(worker ? up[1] : up[0]);
        close(worker ? both[1] : both[0]);
    }
    if (worker == 0) {
        close(log);
        hold();
    }
    int launcher_stays = !(is("orphan") || is("leader-zombie") || is("retitled"));
    say(launcher_stays ? "helpers" : "launcher", getpid());
    let_go();
    watch_signals(log, 0, !is("unreaped"));
}

/* Charged itself, with a fork that never calls CUDA and inherits its files. */
static void hold_and_fork(void)
{
    setsid();
    retitle(own_title(), 0);
    look_like_cuda("/dev", 0);
    take_charge("file");
    if (fork() == 0) {
        start_watching(0, 0);
        say("holders", getpid());
        let_go();
        for (;;)
            pause();
    }
    int log = open_log();
    say("dead", getpid());
    let_go();
    watch_signals(log, 0, 0);
}

/* ---- the starter ------------------------------------------------------------------ */

struct found {
    int holders[4], dead[4], helpers[4], launcher;
    int holder_count, dead_count, helper_count;
};

static void note(struct found *found, const char *role, int pid)
{
    if (strcmp(role, "holders") == 0)
        found->holders[found->holder_count++] = pid;
    else if (strcmp(role, "dead") == 0)
        found->dead[found->dead_count++] = pid;
    else if (strcmp(role, "helpers") == 0)
        found->helpers[found->helper_count++] = pid;
    else
        found->launcher = pid;
}

/* Two processes report; then those that must be dead are killed, by their exact pids. */
static void start_pair(struct found *found, void (*role)(void))
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC))
        die("no pipe");
    int child = fork();
    if (child == 0) {
        close(ends[0]);
        tell = ends[1];
        role();
    }
    close(ends[1]);
    FILE *heard = fdopen(ends[0], "r");
    char name[32];
    int pid, count = 0;
    while (count < 2 && fscanf(heard, "%31s %d", name, &pid) == 2) {
        note(found, name, pid);
        count++;
    }
    fclose(heard);
    if (count < 2) {
        kill(child, SIGKILL);
        _exit(1); /* the one that failed said why */
    }
    int child_dies = found->launcher == child || is("forked-holder");
    if (child_dies) {
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        if (found->launcher == child)
            note(found, "dead", child);
    }
    if (is("unreaped")) { /* its parent, the launcher, never reaps it */
        char path[64], text[256];
        kill(found->dead[0], SIGKILL);
        snprintf(path, sizeof path, "/proc/%d/stat", found->dead[0]);
        for (int tries = 0; tries < 5000; tries++) {
            int fd = open(path, O_RDONLY | O_CLOEXEC);
            ssize_t got = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
            if (fd >= 0)
                close(fd);
            text[got > 0 ? got : 0] = '\0';
            char *state = strrchr(text, ')');
            if (state && state[2] == 'Z')
                break;
            usleep(1000);
        }
    }
}

/* Two dead parents, two heirs: other sessions, other executables. */
static void start_two_families(struct found *found)
{
    char self[256] = "", command[1024];
    if (readlink("/proc/self/exe", self, sizeof self - 1) < 0)
        die("/proc/self/exe: %s", strerror(errno));
    const char *names[2] = {title ? title : "python3 loader.py",
                            title ? title : "python3 preprocess.py"};
    for (int i = 0; i < 2; i++) {
        int ends[2], holder, dead;
        long part = i ? mib - mib / 2 : mib / 2;
        char amount[32], where[16];
        snprintf(command, sizeof command, "%s%s", self, i ? "-b" : "");
        snprintf(amount, sizeof amount, "%ld", part);
        snprintf(where, sizeof where, "%d", gpu);
        if (pipe2(ends, O_CLOEXEC))
            die("no pipe");
        int child = fork();
        if (child == 0) {
            dup2(ends[1], 1);
            execl(command, "hog", "forked-holder", where, amount, names[i], (char *)NULL);
            _exit(127);
        }
        close(ends[1]);
        FILE *heard = fdopen(ends[0], "r");
        int got = fscanf(heard, "{\"holders\": [%d], \"dead\": [%d]", &holder, &dead);
        fclose(heard);
        waitpid(child, NULL, 0);
        if (got != 2)
            _exit(1);
        note(found, "holders", holder);
        note(found, "dead", dead);
    }
}

static void print_list(const char *name, const int *pids, int count, const char *end)
{
    printf("\"%s\": [", name);
    for (int i = 0; i < count; i++)
        printf("%s%d", i ? ", " : "", pids[i]);
    printf("]%s", end);
}

static int make_nodes(void)
{
    static const char *steps[] = {"/run/nvidia", "/run/nvidia/driver", SECOND_DEV};
    for (int i = 0; i < 3; i++)
        if (mkdir(steps[i], 0755) && errno != EEXIST)
            die("%s: %s", steps[i], strerror(errno));
    for (int i = -2; i < MAX_GPUS; i++) {
        char name[32], from[64], to[64];
        struct stat node;
        snprintf(name, sizeof name, i == -2 ? "nvidiactl" : i == -1 ? "nvidia-uvm" : "nvidia%d", i);
        snprintf(from, sizeof from, "/dev/%s", name);
        snprintf(to, sizeof to, SECOND_DEV "/%s", name);
        if (stat(from, &node))
            continue;
        if (mknod(to, S_IFCHR | 0666, node.st_rdev) && errno != EEXIST)
            die("%s: %s", to, strerror(errno));
        chmod(to, 0666);
    }
    return 0;
}

static long number(const char *text)
{
    char *end;
    long value = strtol(text, &end, 10);
    if (*text == '\0' || *end != '\0' || value < 0)
        die("not a number: %s", text);
    return value;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "make-nodes") == 0)
        return make_nodes();
    if (argc < 4 || argc > 5)
        die("usage: hog KIND GPU MIB [TITLE]");
    if (strlen(argv[0]) < PAD) { /* once more with room for titles */
        char room[PAD + 1];
        memset(room, ' ', PAD);
        room[PAD] = '\0';
        memcpy(room, "hog", 3);
        argv[0] = room;
        execv("/proc/self/exe", argv);
        die("exec: %s", strerror(errno));
    }
    kind = strdup(argv[1]);
    gpu = (int)number(argv[2]);
    mib = number(argv[3]);
    title = argc == 5 ? strdup(argv[4]) : NULL;
    title_area = argv[0];
    title_room = (size_t)(argv[argc - 1] + strlen(argv[argc - 1]) + 1 - argv[0]);
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
    for (int i = 1; i < NSIG; i++)
        signal(i, SIG_DFL); /* an ignored signal could not be waited for */
    struct found found = {0};
    need_gpu();
    need_nvml();
    if (is("unit"))
        hold();
    if (is("ambiguous-heirs"))
        start_two_families(&found);
    else
        start_pair(&found, is("forked-holder") ? hold_and_fork : launch);
    printf("{");
    print_list("holders", found.holders, found.holder_count, ", ");
    print_list("dead", found.dead, found.dead_count, ", ");
    print_list("helpers", found.helpers, found.helper_count, "}\n");
    return 0;
}
