#define _GNU_SOURCE
#include "CApusThreads.h"

#include <dirent.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

// Everything in this file that runs in the handler is async-signal-safe (signal-safety(7)): system calls, and
// backtrace(3), whose library is loaded when the handler is installed.

// REST: the signal that stops a thread for good. Dispatch's workers, and threads that they start, block all signals
// except those of faults and this one.
enum { FRAMES_MAX = 64, SECONDS_MAX = 2, DESCRIPTORS_MAX = 1 << 16, REST = SIGPROF };

static const int crashes[] = {SIGABRT, SIGSEGV, SIGBUS, SIGILL, SIGTRAP, SIGFPE};
enum { CRASH_COUNT = sizeof crashes / sizeof crashes[0] };
static struct sigaction earlier[CRASH_COUNT];
static int is_chained;
static atomic_flag is_crashing = ATOMIC_FLAG_INIT;

// Linux's directory entry, as getdents64(2) returns it.
struct entry {
    uint64_t inode;
    int64_t offset;
    unsigned short length;
    unsigned char type;
    char name[];
};

// Calls for every number that names an entry of a folder of /proc.
static int each_number(const char *path, void (*body)(int)) {
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) return -1;
    _Alignas(struct entry) char buffer[4096];
    while (1) {
        long length = syscall(SYS_getdents64, folder, buffer, sizeof buffer);
        if (length <= 0) break;
        for (long place = 0; place < length;) {
            const struct entry *entry = (const struct entry *)(buffer + place);
            place += entry->length;
            int number = 0;
            const char *digit = entry->name;
            while (*digit >= '0' && *digit <= '9') number = number * 10 + (*digit++ - '0');
            if (*digit == 0) body(number);
        }
    }
    close(folder);
    return 0;
}

static void rest(int number) {
    (void)number;
    while (1) pause();
}

static void stop_thread(int thread) {
    if (thread != syscall(SYS_gettid)) syscall(SYS_tgkill, getpid(), thread, REST);
}

// From now on a listener refuses, and the peer of a connection sees its end. The descriptor stays open, so that nothing
// reuses its number by mistake.
static void shut_socket(int fd) {
    if (fd > 2) shutdown(fd, SHUT_RDWR);
}

static void shut_listener(int fd) {
    int listens = 0;
    socklen_t length = sizeof listens;
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) == 0 && listens) shut_socket(fd);
}

// Listeners first: a peer whose link ends dials again, and a refusal proves that this process is dead.
static void shut_sockets(void) {
    // All other threads are stopped, so that none reopens a socket, or ends the process before the reason is written.
    struct sigaction resting = {.sa_handler = rest};
    sigfillset(&resting.sa_mask);
    sigaction(REST, &resting, NULL);
    each_number("/proc/self/task", stop_thread);
    if (each_number("/proc/self/fd", shut_listener) == 0) {
        each_number("/proc/self/fd", shut_socket);
        return;
    }
    for (int fd = 3; fd < DESCRIPTORS_MAX; fd++) shut_listener(fd);
    for (int fd = 3; fd < DESCRIPTORS_MAX; fd++) shut_socket(fd);
}

static void say(const char *text) { (void)!write(2, text, strlen(text)); }

static void say_number(uint64_t number, unsigned base) {
    char text[32];
    char *end = text + sizeof text - 1, *first = end;
    *end = 0;
    do *--first = "0123456789abcdef"[number % base];
    while (number /= base);
    say(first);
}

static const char *name_of(int number) {
    switch (number) {
    case SIGABRT: return "SIGABRT";
    case SIGSEGV: return "SIGSEGV";
    case SIGBUS: return "SIGBUS";
    case SIGILL: return "SIGILL";
    case SIGTRAP: return "SIGTRAP";
    case SIGFPE: return "SIGFPE";
    default: return "a signal";
    }
}

static void report(int number, const siginfo_t *info) {
    say("apus: the process crashed: ");
    say(name_of(number));
    if (info->si_code > 0) {
        say(" at address 0x");
        say_number((uint64_t)(uintptr_t)info->si_addr, 16);
    } else {
        say(" sent by process ");
        say_number((uint64_t)info->si_pid, 10);
    }
    say(", thread ");
    say_number((uint64_t)syscall(SYS_gettid), 10);
    say("; its sockets are shut\n");
}

static void crashed(int number, siginfo_t *info, void *context) {
    (void)context;
    // If a second thread crashes because its sockets were shut, it waits for the end.
    while (atomic_flag_test_and_set(&is_crashing)) pause();
    shut_sockets();
    report(number, info);
    if (!is_chained) {
        // The frames are optional: the process ends in time whatever they need.
        signal(SIGALRM, SIG_DFL);
        sigset_t alarm_only;
        sigemptyset(&alarm_only);
        sigaddset(&alarm_only, SIGALRM);
        pthread_sigmask(SIG_UNBLOCK, &alarm_only, NULL);
        alarm(SECONDS_MAX);
        // The node that takes over needs the processors more than this process does.
        struct sched_param ordinary = {0};
        sched_setscheduler(0, SCHED_OTHER, &ordinary);
        setpriority(PRIO_PROCESS, 0, 19);
        void *frames[FRAMES_MAX];
        int count = backtrace(frames, FRAMES_MAX);
        backtrace_symbols_fd(frames, count, 2);
    }
    for (int index = 0; index < CRASH_COUNT; index++) {
        if (crashes[index] != number) continue;
        struct sigaction standard = {.sa_handler = SIG_DFL};
        sigaction(number, is_chained ? &earlier[index] : &standard, NULL);
    }
    // Blocked until the handler returns, then handled by the action just set.
    syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), number);
}

void apus_crash_install(int chains) {
    void *frame;
    (void)backtrace(&frame, 1);
    is_chained = chains;
    for (int index = 0; index < CRASH_COUNT; index++) {
        struct sigaction action = {.sa_sigaction = crashed, .sa_flags = SA_SIGINFO | SA_ONSTACK};
        // One crash at a time in a thread; another signal of the list must not interrupt the handler.
        for (int other = 0; other < CRASH_COUNT; other++) sigaddset(&action.sa_mask, crashes[other]);
        sigaction(crashes[index], &action, &earlier[index]);
    }
}
