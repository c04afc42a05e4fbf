/* A simulated libnvidia-ml.so.1: answers from the files below /run/nvml-sim, read afresh at
 * every call, so that what NVML says follows what processes do.
 *
 * gpus       one line a GPU: index= uuid= name= total= reserved= idle= numa_node= minor= bus=
 *            mig= persistence=   ("_" in a name is a space; mig=K: MIG mode on, K instances)
 * charges/X  one allocation a line: gpu= bytes= pid= start= lists=compute,graphics,mps|none
 *            gi= ci= rule=process|file|linger:SECONDS|ipc:PID|sticky
 * faults     OPERATION[.GPU]=CODE|hang|wait|slow:SECONDS (wait: until the file says another
 *            thing), processes.N=scrambled|unknown,
 *            utilization.N=PERCENT, recovery.N=ACTION. Operations: init count handle name
 *            uuid pci minor memory processes utilization mig persistence numa driver recovery
 * state/     when the library first saw a lingering charge's process dead (mtime)
 *
 * Fields come in any order; "-" is "not there"; files named .X and lines that make no sense
 * are skipped.
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define ROOT "/run/nvml-sim"
#define API __attribute__((visibility("default"))) int

typedef unsigned long long u64;
typedef unsigned int u32;

enum { MAX_GPUS = 64, MAX_MIG = 8, MAX_ROWS = 8192, MAX_TEXT = 1 << 20 };
enum {
    OK = 0,
    UNINITIALIZED = 1,
    INVALID = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    TOO_SMALL = 7,
    NO_DRIVER = 9,
    LOST = 15,
    BAD_VERSION = 25,
};
enum { COMPUTE = 1, GRAPHICS = 2, MPS = 4 };

struct gpu {
    int index, minor, mig, persistence, numa_node;
    u64 total, reserved, idle;
    char uuid[96], name[96], bus[32];
};

struct row { /* what one process holds on one GPU (instance) */
    u32 pid, gi, ci;
    int lists;
    u64 bytes;
};

struct handle {
    int index;    /* NVML index of the GPU */
    int instance; /* -1: the GPU itself */
};

static struct handle handles[MAX_GPUS][MAX_MIG + 1];
static int users;

/* ---- text ------------------------------------------------------------------------- */

/* Whole file as a string that the caller frees, NULL where it cannot be read. */
static char *read_fd(int fd)
{
    size_t size = 0, room = 4096;
    char *text = malloc(room);
    while (text) {
        ssize_t got = read(fd, text + size, room - size - 1);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        size += got;
        if (room - size < 2) {
            char *more = room >= MAX_TEXT ? NULL : realloc(text, room *= 2);
            if (!more)
                break;
            text = more;
        }
    }
    if (text)
        text[size] = '\0';
    return text;
}

static char *read_path(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    char *text = read_fd(fd);
    close(fd);
    return text;
}

/* Value of KEY= in a line of words; "" where absent or "-". */
static const char *value(const char *line, const char *key, char *out, size_t room)
{
    size_t length = strlen(key);
    out[0] = '\0';
    for (const char *at = line; *at;) {
        while (isspace((unsigned char)*at))
            at++;
        const char *end = at;
        while (*end && !isspace((unsigned char)*end))
            end++;
        if ((size_t)(end - at) > length && !strncmp(at, key, length) && at[length] == '=') {
            snprintf(out, room, "%.*s", (int)(end - at - length - 1), at + length + 1);
            break;
        }
        at = end;
    }
    if (!strcmp(out, "-"))
        out[0] = '\0';
    return out;
}

/* Number of KEY=; ``missing`` where it is absent or no number. */
static long long numeric(const char *line, const char *key, long long missing)
{
    char text[64], *end;
    value(line, key, text, sizeof text);
    long long number = strtoll(text, &end, 10);
    return text[0] == '\0' || *end != '\0' ? missing : number;
}

static char *next_line(char **rest)
{
    char *line;
    while ((line = strsep(rest, "\n"))) {
        line += strspn(line, " \t\r");
        if (*line && *line != '#')
            return line;
    }
    return NULL;
}

/* ---- faults ----------------------------------------------------------------------- */

/* The wished value of an operation, "" where there is none. */
static const char *wish(const char *operation, int gpu, char *out, size_t room)
{
    char *text = read_path(ROOT "/faults"), *rest = text, *line, key[64];
    out[0] = '\0';
    snprintf(key, sizeof key, "%s.%d", operation, gpu);
    while (text && (line = next_line(&rest))) {
        char own[64];
        value(line, key, own, sizeof own);
        if (!own[0])
            value(line, operation, own, sizeof own);
        if (own[0])
            snprintf(out, room, "%s", own);
    }
    free(text);
    return out;
}

/* NVML code of a wished fault, 0 where there is none. Hangs for ever, or for as long as the
 * file says "wait", where that is wished. */
static int fault(const char *operation, int gpu)
{
    char text[64], *end;
    wish(operation, gpu, text, sizeof text);
    if (!strcmp(text, "hang"))
        for (;;)
            pause();
    while (!strcmp(text, "wait")) {
        struct timespec moment = {0, 20000000};
        nanosleep(&moment, NULL);
        wish(operation, gpu, text, sizeof text);
    }
    if (!strncmp(text, "slow:", 5)) {
        double seconds = strtod(text + 5, &end);
        struct timespec span = {(time_t)seconds, (long)((seconds - (time_t)seconds) * 1e9)};
        if (seconds > 0)
            nanosleep(&span, NULL);
        return OK;
    }
    long code = strtol(text, &end, 10);
    return text[0] == '\0' || *end != '\0' ? OK : (int)code;
}

/* ---- GPUs ------------------------------------------------------------------------- */

static int load_gpus(struct gpu *gpus)
{
    char *text = read_path(ROOT "/gpus"), *rest = text, *line;
    int count = 0;
    if (!text)
        return -1;
    while (count < MAX_GPUS && (line = next_line(&rest))) {
        struct gpu *gpu = &gpus[count];
        if (!strchr(line, '='))
            continue;
        memset(gpu, 0, sizeof *gpu);
        gpu->index = (int)numeric(line, "index", count);
        gpu->minor = (int)numeric(line, "minor", gpu->index);
        gpu->mig = (int)numeric(line, "mig", 0);
        gpu->persistence = (int)numeric(line, "persistence", 1);
        gpu->numa_node = (int)numeric(line, "numa_node", -1);
        gpu->total = (u64)numeric(line, "total", 0);
        gpu->reserved = (u64)numeric(line, "reserved", 0);
        gpu->idle = (u64)numeric(line, "idle", 0);
        value(line, "uuid", gpu->uuid, sizeof gpu->uuid);
        value(line, "bus", gpu->bus, sizeof gpu->bus);
        value(line, "name", gpu->name, sizeof gpu->name);
        for (char *at = gpu->name; *at; at++)
            if (*at == '_')
                *at = ' ';
        if (gpu->index < 0 || gpu->index >= MAX_GPUS)
            continue;
        if (gpu->mig > MAX_MIG)
            gpu->mig = MAX_MIG;
        count++;
    }
    free(text);
    return count;
}

/* 0 and the GPU behind a handle, or an NVML code. */
static int resolve(const void *device, const char *operation, struct gpu *gpu, int *instance)
{
    const struct handle *handle = device;
    const struct handle *first = &handles[0][0];
    if (users == 0)
        return UNINITIALIZED;
    if (handle < first || handle >= first + MAX_GPUS * (MAX_MIG + 1))
        return INVALID;
    struct gpu gpus[MAX_GPUS];
    int count = load_gpus(gpus);
    if (instance)
        *instance = handle->instance;
    for (int i = 0; i < count; i++)
        if (gpus[i].index == handle->index) {
            *gpu = gpus[i];
            return operation ? fault(operation, gpu->index) : OK;
        }
    return LOST;
}

static void give_handle(int index, int instance, void **out)
{
    struct handle *handle = &handles[index][instance + 1];
    handle->index = index;
    handle->instance = instance;
    *out = handle;
}

static void uuid_of(const struct gpu *gpu, int instance, char *out, size_t room)
{
    if (instance < 0) {
        snprintf(out, room, "%s", gpu->uuid);
        return;
    }
    const char *body = strncmp(gpu->uuid, "GPU-", 4) ? gpu->uuid : gpu->uuid + 4;
    size_t keep = strlen(body) > 2 ? strlen(body) - 2 : strlen(body);
    snprintf(out, room, "MIG-%.*s%02x", (int)keep, body, instance + 1);
}

/* ---- processes -------------------------------------------------------------------- */

static int task_lives(const char *stat, u64 start)
{
    const char *at = stat ? strrchr(stat, ')') : NULL;
    if (!at || at[1] != ' ')
        return 0;
    if (at[2] == 'Z' || at[2] == 'X')
        return 0;
    if (!start)
        return 1;
    for (int field = 2; at && field < 22; field++)
        at = strchr(at + 1, ' ');
    return at && strtoull(at, NULL, 10) == start;
}

/* Whether any task of the process still runs: a zombie leader with live threads does. */
static int lives(long pid, u64 start)
{
    char path[64];
    if (pid <= 0)
        return 0;
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    char *stat = read_path(path);
    if (!stat)
        return 0;
    int alive = task_lives(stat, start);
    char *at = strrchr(stat, ')');
    int zombie = at && at[1] == ' ' && (at[2] == 'Z' || at[2] == 'X');
    for (int field = 2; at && field < 22; field++)
        at = strchr(at + 1, ' ');
    int same = !start || (at && strtoull(at, NULL, 10) == start);
    free(stat);
    if (alive || !zombie || !same)
        return alive;
    snprintf(path, sizeof path, "/proc/%ld/task", pid);
    DIR *tasks = opendir(path);
    struct dirent *entry;
    while (tasks && !alive && (entry = readdir(tasks))) {
        char task[352];
        if (!isdigit((unsigned char)entry->d_name[0]))
            continue;
        snprintf(task, sizeof task, "%s/%s/stat", path, entry->d_name);
        char *text = read_path(task);
        alive = text && task_lives(text, 0);
        free(text);
    }
    if (tasks)
        closedir(tasks);
    return alive;
}

/* Seconds since somebody first saw the charge's process dead; this call may be the first. */
static double seconds_dead(const char *name, long pid, u64 start, const struct stat *file)
{
    static struct {
        char path[384];
        struct timespec since;
    } remembered[64];
    static int used;
    char path[384];
    struct timespec now, since;
    struct stat seen;
    if (mkdir(ROOT "/state", 0777) == 0)
        chmod(ROOT "/state", 01777);
    snprintf(path, sizeof path, ROOT "/state/%.200s.%ld.%llu.%ld%09ld", name, pid, start,
             (long)file->st_mtim.tv_sec, (long)file->st_mtim.tv_nsec);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd >= 0)
        close(fd);
    clock_gettime(CLOCK_REALTIME, &now);
    if (stat(path, &seen) == 0) {
        since = seen.st_mtim;
    } else { /* nowhere to write: this process remembers for itself */
        int i = 0;
        while (i < used && strcmp(remembered[i].path, path))
            i++;
        if (i == used && used < 64) {
            snprintf(remembered[i].path, sizeof remembered[i].path, "%s", path);
            remembered[i].since = now;
            used++;
        }
        since = i < 64 ? remembered[i].since : now;
    }
    return (double)(now.tv_sec - since.tv_sec) + (double)(now.tv_nsec - since.tv_nsec) / 1e9;
}

/* ---- charges ---------------------------------------------------------------------- */

/* The pid that a charge counts for now, -1 where it counts no more. */
static long charged_pid(const char *name, int fd, const struct stat *file, const char *line)
{
    char rule[64];
    long pid = (long)numeric(line, "pid", 0);
    u64 start = (u64)numeric(line, "start", 0);
    value(line, "rule", rule, sizeof rule);
    if (!strcmp(rule, "sticky") || (!rule[0] && pid <= 0))
        return pid;
    if (!strcmp(rule, "file")) {
        if (flock(fd, LOCK_SH | LOCK_NB) == 0) {
            flock(fd, LOCK_UN);
            return -1;
        }
        return errno == EWOULDBLOCK ? pid : -1;
    }
    if (lives(pid, start))
        return pid;
    if (!strncmp(rule, "linger:", 7))
        return seconds_dead(name, pid, start, file) < strtod(rule + 7, NULL) ? pid : -1;
    if (!strncmp(rule, "ipc:", 4)) {
        long heir = strtol(rule + 4, NULL, 10);
        return lives(heir, 0) ? heir : -1;
    }
    return -1;
}

static int lists_of(const char *line)
{
    char text[64], *rest = text, *word;
    int lists = 0;
    value(line, "lists", text, sizeof text);
    if (!text[0])
        return COMPUTE;
    while ((word = strsep(&rest, ","))) {
        lists |= !strcmp(word, "compute") ? COMPUTE : 0;
        lists |= !strcmp(word, "graphics") ? GRAPHICS : 0;
        lists |= !strcmp(word, "mps") ? MPS : 0;
    }
    return lists;
}

static int add_row(struct row *rows, int count, const struct row *row)
{
    for (int i = 0; i < count; i++)
        if (rows[i].pid == row->pid && rows[i].gi == row->gi && rows[i].ci == row->ci &&
            rows[i].lists == row->lists) {
            rows[i].bytes += row->bytes;
            return count;
        }
    if (count < MAX_ROWS)
        rows[count++] = *row;
    return count;
}

/* All that counts on a GPU, in ``rows`` (may be NULL); returns their number, sums into *bytes. */
static int load_charges(int index, int instance, struct row *rows, u64 *bytes)
{
    DIR *directory = opendir(ROOT "/charges");
    struct dirent *entry;
    int count = 0;
    *bytes = 0;
    while (directory && (entry = readdir(directory))) {
        if (entry->d_name[0] == '.')
            continue;
        struct stat file;
        int fd = openat(dirfd(directory), entry->d_name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (fd < 0 || fstat(fd, &file) || !S_ISREG(file.st_mode)) {
            if (fd >= 0)
                close(fd);
            continue;
        }
        char *text = read_fd(fd), *rest = text, *line;
        while (text && (line = next_line(&rest))) {
            long long size = numeric(line, "bytes", -1);
            if (numeric(line, "gpu", -1) != index || size < 0)
                continue;
            struct row row = {0, (u32)numeric(line, "gi", 0xffffffffLL),
                              (u32)numeric(line, "ci", 0xffffffffLL), lists_of(line), (u64)size};
            if (instance >= 0 && row.gi != (u32)instance + 1)
                continue;
            long pid = charged_pid(entry->d_name, fd, &file, line);
            if (pid < 0)
                continue;
            row.pid = (u32)pid;
            *bytes += row.bytes;
            if (rows && row.lists)
                count = add_row(rows, count, &row);
        }
        free(text);
        close(fd);
    }
    if (directory)
        closedir(directory);
    return count;
}

struct memory {
    u64 total, reserved, used, free;
};

/* Bytes of one field of a NUMA node's meminfo, -1 where it cannot be read. */
static long long node_bytes(int node, const char *field)
{
    char path[96];
    snprintf(path, sizeof path, "/sys/devices/system/node/node%d/meminfo", node);
    char *text = read_path(path);
    const char *at = text ? strstr(text, field) : NULL;
    long long bytes = at ? strtoll(at + strlen(field), NULL, 10) * 1024 : -1;
    free(text);
    return bytes;
}

/* total = reserved + used + free, always. */
static void measure(const struct gpu *gpu, int instance, struct memory *memory)
{
    u64 charged, share = instance < 0 || gpu->mig < 1 ? 1 : (u64)gpu->mig;
    memory->total = gpu->total / share;
    memory->reserved = gpu->reserved / share;
    if (memory->reserved > memory->total)
        memory->reserved = memory->total;
    if (gpu->numa_node >= 0 && instance < 0) {
        long long all = node_bytes(gpu->numa_node, "MemTotal:");
        long long spare = node_bytes(gpu->numa_node, "MemFree:");
        if (all >= 0 && spare >= 0) {
            memory->free = (u64)spare;
            memory->used = (u64)(all > spare ? all - spare : 0);
            memory->total = memory->reserved + memory->used + memory->free;
            return;
        }
    }
    load_charges(gpu->index, instance, NULL, &charged);
    memory->used = (instance < 0 ? gpu->idle : 0) + charged;
    if (memory->used > memory->total - memory->reserved)
        memory->used = memory->total - memory->reserved;
    memory->free = memory->total - memory->reserved - memory->used;
}

/* ---- the library: start, system --------------------------------------------------- */

static int copy_text(const char *text, char *out, u32 room)
{
    if (!out)
        return INVALID;
    if (strlen(text) + 1 > room)
        return TOO_SMALL;
    strcpy(out, text);
    return OK;
}

API nvmlInitWithFlags(u32 flags)
{
    struct gpu gpus[MAX_GPUS];
    (void)flags;
    int code = fault("init", -1);
    if (code)
        return code;
    if (load_gpus(gpus) < 0)
        return NO_DRIVER;
    users++;
    return OK;
}

API nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

API nvmlInit(void)
{
    return nvmlInitWithFlags(0);
}

API nvmlShutdown(void)
{
    if (users == 0)
        return UNINITIALIZED;
    users--;
    return OK;
}

__attribute__((visibility("default"))) const char *nvmlErrorString(int code)
{
    static const char *const texts[] = {
        "Success", "Uninitialized", "Invalid Argument", "Not Supported",
        "Insufficient Permissions", "Already Initialized", "Not Found", "Insufficient Size",
        "Insufficient External Power", "Driver Not Loaded", "Timeout", "Interrupt Request Issue",
        "NVML Shared Library Not Found", "Function Not Found", "Corrupted infoROM",
        "GPU is lost", "GPU requires reset",
        "The operating system has blocked the request", "RM has detected an NVML/RM version mismatch.",
        "In use by another client", "Insufficient Memory", "No data",
    };
    if (code >= 0 && code < (int)(sizeof texts / sizeof *texts))
        return texts[code];
    return code == BAD_VERSION ? "Argument version mismatch" : "Unknown Error";
}

API nvmlSystemGetDriverVersion(char *out, u32 room)
{
    int code = users ? fault("driver", -1) : UNINITIALIZED;
    return code ? code : copy_text("580.159.04", out, room);
}

API nvmlSystemGetNVMLVersion(char *out, u32 room)
{
    return users ? copy_text("13.580.159.04", out, room) : UNINITIALIZED;
}

API nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    *version = 13000;
    return OK;
}

API nvmlSystemGetCudaDriverVersion(int *version)
{
    return nvmlSystemGetCudaDriverVersion_v2(version);
}

API nvmlSystemGetProcessName(u32 pid, char *out, u32 room)
{
    char path[64];
    if (users == 0)
        return UNINITIALIZED;
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    char *text = read_path(path);
    if (!text || !out || !room) {
        free(text);
        return text ? INVALID : NOT_FOUND;
    }
    snprintf(out, room, "%s", text);
    free(text);
    return OK;
}

/* ---- devices ---------------------------------------------------------------------- */

API nvmlDeviceGetCount_v2(u32 *count)
{
    struct gpu gpus[MAX_GPUS];
    int code = users ? fault("count", -1) : UNINITIALIZED;
    if (code)
        return code;
    int found = load_gpus(gpus);
    *count = found < 0 ? 0 : (u32)found;
    return OK;
}

API nvmlDeviceGetHandleByIndex_v2(u32 index, void **device)
{
    struct gpu gpus[MAX_GPUS];
    if (users == 0)
        return UNINITIALIZED;
    int count = load_gpus(gpus), code;
    for (int i = 0; i < count; i++)
        if ((u32)gpus[i].index == index) {
            if ((code = fault("handle", gpus[i].index)))
                return code;
            give_handle(gpus[i].index, -1, device);
            return OK;
        }
    return INVALID;
}

API nvmlDeviceGetHandleByUUID(const char *uuid, void **device)
{
    struct gpu gpus[MAX_GPUS];
    if (users == 0)
        return UNINITIALIZED;
    int count = load_gpus(gpus);
    for (int i = 0; i < count; i++)
        for (int instance = -1; instance < gpus[i].mig; instance++) {
            char own[96];
            uuid_of(&gpus[i], instance, own, sizeof own);
            if (strcmp(own, uuid) == 0) {
                int code = fault("handle", gpus[i].index);
                if (!code)
                    give_handle(gpus[i].index, instance, device);
                return code;
            }
        }
    return NOT_FOUND;
}

API nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **device)
{
    struct gpu gpus[MAX_GPUS];
    u32 want[3], have[3];
    if (users == 0)
        return UNINITIALIZED;
    if (sscanf(bus, "%x:%x:%x", &want[0], &want[1], &want[2]) != 3)
        return INVALID;
    int count = load_gpus(gpus);
    for (int i = 0; i < count; i++)
        if (sscanf(gpus[i].bus, "%x:%x:%x", &have[0], &have[1], &have[2]) == 3 &&
            memcmp(want, have, sizeof have) == 0)
            return nvmlDeviceGetHandleByIndex_v2((u32)gpus[i].index, device);
    return NOT_FOUND;
}

API nvmlDeviceGetIndex(void *device, u32 *index)
{
    struct gpu gpu;
    int code = resolve(device, NULL, &gpu, NULL);
    if (!code)
        *index = (u32)gpu.index;
    return code;
}

API nvmlDeviceGetName(void *device, char *out, u32 room)
{
    struct gpu gpu;
    int code = resolve(device, "name", &gpu, NULL);
    return code ? code : copy_text(gpu.name, out, room);
}

API nvmlDeviceGetUUID(void *device, char *out, u32 room)
{
    struct gpu gpu;
    int instance;
    char own[96];
    int code = resolve(device, "uuid", &gpu, &instance);
    if (code)
        return code;
    uuid_of(&gpu, instance, own, sizeof own);
    return copy_text(own, out, room);
}

API nvmlDeviceGetMinorNumber(void *device, u32 *minor)
{
    struct gpu gpu;
    int code = resolve(device, "minor", &gpu, NULL);
    if (!code)
        *minor = (u32)gpu.minor;
    return code;
}

struct pci {
    char legacy[16];
    u32 domain, bus, device, id, subsystem;
    char text[32];
};

API nvmlDeviceGetPciInfo_v3(void *device, struct pci *pci)
{
    struct gpu gpu;
    int code = resolve(device, "pci", &gpu, NULL);
    if (code)
        return code;
    memset(pci, 0, sizeof *pci);
    if (sscanf(gpu.bus, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device) != 3)
        return NOT_SUPPORTED;
    pci->id = 0x234210de;
    snprintf(pci->legacy, sizeof pci->legacy, "%04X:%02X:%02X.0", pci->domain & 0xffff,
             pci->bus & 0xff, pci->device & 0xff);
    snprintf(pci->text, sizeof pci->text, "%08X:%02X:%02X.0", pci->domain, pci->bus & 0xff,
             pci->device & 0xff);
    return OK;
}

API nvmlDeviceGetNumaNodeId(void *device, int *node)
{
    struct gpu gpu;
    int code = resolve(device, "numa", &gpu, NULL);
    if (code)
        return code;
    if (gpu.numa_node < 0)
        return NOT_SUPPORTED;
    *node = gpu.numa_node;
    return OK;
}

API nvmlDeviceGetPersistenceMode(void *device, u32 *mode)
{
    struct gpu gpu;
    int code = resolve(device, "persistence", &gpu, NULL);
    if (!code)
        *mode = gpu.persistence != 0;
    return code;
}

API nvmlDeviceGetUtilizationRates(void *device, u32 *rates)
{
    struct gpu gpu;
    char text[64];
    int code = resolve(device, NULL, &gpu, NULL);
    if (code)
        return code;
    wish("utilization", gpu.index, text, sizeof text);
    if (!strcmp(text, "hang"))
        return fault("utilization", gpu.index);
    int percent = atoi(text);
    rates[0] = (u32)(percent < 0 ? 0 : percent > 100 ? 100 : percent);
    rates[1] = rates[0] / 2;
    return OK;
}

/* ---- memory and processes --------------------------------------------------------- */

API nvmlDeviceGetMemoryInfo(void *device, u64 *out)
{
    struct gpu gpu;
    struct memory memory;
    int instance, code = resolve(device, "memory", &gpu, &instance);
    if (code)
        return code;
    measure(&gpu, instance, &memory);
    out[0] = memory.total;
    out[1] = memory.free;
    out[2] = memory.total - memory.free; /* version 1 counts the reserve as used */
    return OK;
}

struct memory_v2 {
    u32 version;
    u64 total, reserved, free, used;
};

API nvmlDeviceGetMemoryInfo_v2(void *device, struct memory_v2 *out)
{
    struct gpu gpu;
    struct memory memory;
    int instance, code = resolve(device, "memory", &gpu, &instance);
    if (code)
        return code;
    if (out->version != 0x02000028)
        return BAD_VERSION;
    measure(&gpu, instance, &memory);
    out->total = memory.total;
    out->reserved = memory.reserved;
    out->free = memory.free;
    out->used = memory.used;
    return OK;
}

struct process {
    u32 pid, padding;
    u64 bytes;
    u32 gi, ci;
};

struct process_535 { /* the record of one driver series, longer than callers expect */
    u32 pid, padding;
    u64 bytes;
    u32 gi, ci;
    u64 protected_bytes;
};

static int processes(void *device, int list, u32 *room, struct process *out)
{
    static __thread struct row rows[MAX_ROWS];
    struct gpu gpu;
    char text[64];
    u64 bytes;
    int instance, code = resolve(device, "processes", &gpu, &instance);
    if (code)
        return code;
    int all = load_charges(gpu.index, instance, rows, &bytes), count = 0;
    for (int i = 0; i < all; i++)
        if (rows[i].lists & list)
            rows[count++] = rows[i];
    u32 given = *room;
    *room = (u32)count;
    if (count == 0)
        return OK;
    if (!out || given < (u32)count)
        return TOO_SMALL;
    wish("processes", gpu.index, text, sizeof text);
    int scrambled = !strcmp(text, "scrambled"), unknown = !strcmp(text, "unknown");
    for (int i = 0; i < count; i++) {
        u64 size = unknown ? ~0ULL : rows[i].bytes;
        if (scrambled) {
            struct process_535 record = {rows[i].pid, 0, size, rows[i].gi, rows[i].ci, 0};
            size_t at = (size_t)i * sizeof record, end = (size_t)given * sizeof *out;
            size_t left = at < end ? end - at : 0;
            memcpy((char *)out + at, &record, left < sizeof record ? left : sizeof record);
        } else {
            out[i] = (struct process){rows[i].pid, 0, size, rows[i].gi, rows[i].ci};
        }
    }
    return OK;
}

#define PROCESS_LIST(NAME, LIST)                                                              \
    API nvmlDeviceGet##NAME##RunningProcesses_v3(void *d, u32 *n, struct process *out)        \
    {                                                                                         \
        return processes(d, LIST, n, out);                                                    \
    }                                                                                         \
    API nvmlDeviceGet##NAME##RunningProcesses_v2(void *d, u32 *n, struct process *out)        \
    {                                                                                         \
        return processes(d, LIST, n, out);                                                    \
    }

PROCESS_LIST(Compute, COMPUTE)
PROCESS_LIST(Graphics, GRAPHICS)
PROCESS_LIST(MPSCompute, MPS)

/* ---- MIG and fields --------------------------------------------------------------- */

API nvmlDeviceGetMigMode(void *device, u32 *current, u32 *pending)
{
    struct gpu gpu;
    int code = resolve(device, "mig", &gpu, NULL);
    if (!code)
        *current = *pending = gpu.mig > 0;
    return code;
}

API nvmlDeviceGetMaxMigDeviceCount(void *device, u32 *count)
{
    struct gpu gpu;
    int code = resolve(device, "mig", &gpu, NULL);
    if (!code)
        *count = gpu.mig > 0 ? MAX_MIG - 1 : 0;
    return code;
}

API nvmlDeviceGetMigDeviceHandleByIndex(void *device, u32 index, void **out)
{
    struct gpu gpu;
    int instance, code = resolve(device, "mig", &gpu, &instance);
    if (code)
        return code;
    if (instance >= 0 || gpu.mig < 1)
        return NOT_SUPPORTED;
    if (index >= (u32)gpu.mig)
        return NOT_FOUND;
    give_handle(gpu.index, (int)index, out);
    return OK;
}

API nvmlDeviceIsMigDeviceHandle(void *device, u32 *is)
{
    struct gpu gpu;
    int instance, code = resolve(device, NULL, &gpu, &instance);
    if (!code)
        *is = instance >= 0;
    return code;
}

API nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *device, void **out)
{
    struct gpu gpu;
    int instance, code = resolve(device, NULL, &gpu, &instance);
    if (!code)
        give_handle(gpu.index, -1, out);
    return code;
}

API nvmlDeviceGetGpuInstanceId(void *device, u32 *id)
{
    struct gpu gpu;
    int instance, code = resolve(device, NULL, &gpu, &instance);
    if (code || instance < 0)
        return code ? code : INVALID;
    *id = (u32)instance + 1;
    return OK;
}

API nvmlDeviceGetComputeInstanceId(void *device, u32 *id)
{
    struct gpu gpu;
    int instance, code = resolve(device, NULL, &gpu, &instance);
    if (code || instance < 0)
        return code ? code : INVALID;
    *id = 0;
    return OK;
}

struct field {
    u32 id, scope;
    long long timestamp, latency;
    u32 type;
    int code;
    union {
        u64 whole;
        u32 part;
    } value;
};

API nvmlDeviceGetFieldValues(void *device, int count, struct field *fields)
{
    struct gpu gpu;
    char text[64];
    int code = resolve(device, NULL, &gpu, NULL);
    for (int i = 0; !code && i < count; i++) {
        fields[i].code = NOT_SUPPORTED;
        if (fields[i].id == 230) { /* recovery action: 0 none, 1 reset, 2 reboot, 3 drain … */
            wish("recovery", gpu.index, text, sizeof text);
            if (!strcmp(text, "hang"))
                fault("recovery", gpu.index);
            fields[i].type = 1;
            fields[i].value.whole = 0;
            fields[i].value.part = (u32)atoi(text);
            fields[i].code = OK;
        }
    }
    return code;
}
