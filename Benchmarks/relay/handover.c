// What a hand-over between two threads that relay would save, where both ends of a call are clients of one relay.
//     handover CORE_A CORE_B CORE_LOAD RATE BURST SECONDS
// Thread A receives a client's datagrams, thread B sends them to the other client. Between the two: the kernel (A sends to
// B's relayed address, as two allocations at different threads do), a ring in memory whose reader is woken when it sleeps,
// or nothing (A sends to the other client itself, as at one thread). RATE is datagrams of 200 bytes per second, in bursts
// of BURST. One line for each: CPU of both threads for a datagram, and how long it took.
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/udp.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { DEPTH = 64, SIZE = 200, PLACES = 4096, BYTES = 65536, SLOT = 256 };
enum mode { KERNEL, RING, ONE_THREAD, MODES };
static const char *names[] = {"kernel", "ring", "one_thread"};

struct plane {
    int poller, wake, core;
    // Where it receives (A: from the client, B: at its relayed address), and through what it sends.
    int in, out;
    struct sockaddr_in to;
    double cpu;
    unsigned char *arena, *run;
    struct mmsghdr messages[DEPTH];
    struct iovec vectors[DEPTH];
    unsigned char controls[DEPTH][64];
};

static struct plane a, b;
static enum mode mode;
static _Atomic int is_ending, is_asleep;
static struct {
    unsigned length;
    unsigned char bytes[SLOT - 4];
} ring[PLACES];
static _Atomic unsigned ring_head, ring_tail;

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static uint64_t clock_ns(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return (uint64_t)time.tv_sec * 1000000000u + time.tv_nsec;
}

static void stay(int core) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    if (sched_setaffinity(0, sizeof set, &set) < 0) fail("sched_setaffinity");
}

static int udp(struct sockaddr_in *address) {
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0), one = 1, bytes = 8 << 20;
    *address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof *address;
    if (fd < 0 || bind(fd, (struct sockaddr *)address, length) < 0) fail("bind");
    getsockname(fd, (struct sockaddr *)address, &length);
    setsockopt(fd, IPPROTO_UDP, UDP_GRO, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof bytes);
    return fd;
}

static void watch(struct plane *plane, int fd) {
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    if (epoll_ctl(plane->poller, EPOLL_CTL_ADD, fd, &event) < 0) fail("epoll_ctl");
}

static void prepare(struct plane *plane) {
    plane->arena = malloc((size_t)DEPTH * BYTES);
    plane->run = malloc(BYTES);
    plane->poller = epoll_create1(0);
    plane->wake = eventfd(0, EFD_NONBLOCK);
    watch(plane, plane->in);
    watch(plane, plane->wake);
}

// Sends datagrams of SIZE bytes that stand one after another.
static void put(struct plane *plane, unsigned char *bytes, unsigned count) {
    for (unsigned done = 0; done < count;) {
        unsigned part = count - done > 64 ? 64 : count - done;
        struct iovec vector = {bytes + (size_t)done * SIZE, (size_t)part * SIZE};
        unsigned char control[CMSG_SPACE(2)] = {0};
        struct msghdr message = {
            .msg_name = &plane->to, .msg_namelen = sizeof plane->to, .msg_iov = &vector, .msg_iovlen = 1};
        if (part > 1) {
            message.msg_control = control, message.msg_controllen = sizeof control;
            struct cmsghdr *header = CMSG_FIRSTHDR(&message);
            header->cmsg_level = IPPROTO_UDP, header->cmsg_type = UDP_SEGMENT, header->cmsg_len = CMSG_LEN(2);
            uint16_t size = SIZE;
            memcpy(CMSG_DATA(header), &size, 2);
        }
        sendmsg(plane->out, &message, MSG_DONTWAIT);
        done += part;
    }
}

static void hand_over(const unsigned char *bytes, unsigned count) {
    unsigned tail = atomic_load_explicit(&ring_tail, memory_order_relaxed);
    for (unsigned i = 0; i < count; i++) {
        // What finds it full is lost.
        if (tail - atomic_load_explicit(&ring_head, memory_order_acquire) == PLACES) break;
        ring[tail % PLACES].length = SIZE;
        memcpy(ring[tail % PLACES].bytes, bytes + (size_t)i * SIZE, SIZE);
        tail++;
    }
    atomic_store(&ring_tail, tail);
    if (atomic_load(&is_asleep) && atomic_exchange(&is_asleep, 0)) eventfd_write(b.wake, 1);
}

// Takes what is in the ring, and sends it as runs.
static void take_over(void) {
    unsigned head = atomic_load_explicit(&ring_head, memory_order_relaxed);
    unsigned tail = atomic_load_explicit(&ring_tail, memory_order_acquire), count = 0;
    for (; head != tail; head++) {
        memcpy(b.run + (size_t)count++ * SIZE, ring[head % PLACES].bytes, ring[head % PLACES].length);
        if (count == 64) put(&b, b.run, count), count = 0;
    }
    if (count > 0) put(&b, b.run, count);
    atomic_store_explicit(&ring_head, head, memory_order_release);
}

static void read_datagrams(struct plane *plane) {
    for (int i = 0; i < DEPTH; i++) {
        plane->vectors[i] = (struct iovec){plane->arena + (size_t)i * BYTES, BYTES};
        plane->messages[i].msg_hdr = (struct msghdr){
            .msg_iov = &plane->vectors[i], .msg_iovlen = 1, .msg_control = plane->controls[i], .msg_controllen = 64};
    }
    int count = recvmmsg(plane->in, plane->messages, DEPTH, MSG_DONTWAIT, NULL);
    unsigned gathered = 0;
    for (int i = 0; i < count; i++) {
        unsigned whole = plane->messages[i].msg_len / SIZE;
        if (plane == &a && mode == RING) {
            hand_over(plane->arena + (size_t)i * BYTES, whole);
            continue;
        }
        if (gathered + whole > 64) put(plane, plane->run, gathered), gathered = 0;
        memcpy(plane->run + (size_t)gathered * SIZE, plane->arena + (size_t)i * BYTES, (size_t)whole * SIZE);
        gathered += whole;
    }
    if (gathered > 0) put(plane, plane->run, gathered);
}

static void *run(void *with) {
    struct plane *plane = with;
    stay(plane->core);
    while (!is_ending) {
        if (plane == &b) {
            atomic_store(&is_asleep, 1);
            if (mode == RING && atomic_load(&ring_head) != atomic_load(&ring_tail)) {
                atomic_store(&is_asleep, 0);
                take_over();
                continue;
            }
        }
        struct epoll_event ready[4];
        int count = epoll_wait(plane->poller, ready, 4, -1);
        if (plane == &b) atomic_store(&is_asleep, 0);
        for (int i = 0; i < count; i++) {
            eventfd_t number;
            if (ready[i].data.fd == plane->in) read_datagrams(plane);
            else eventfd_read(plane->wake, &number);
        }
        if (plane == &b && mode == RING) take_over();
    }
    plane->cpu = clock_ns(CLOCK_THREAD_CPUTIME_ID) / 1e9;
    return NULL;
}

static int by_size(const void *left, const void *right) {
    uint32_t x = *(const uint32_t *)left, y = *(const uint32_t *)right;
    return x < y ? -1 : x > y;
}

int main(int count, char **words) {
    if (count != 7) return 64;
    a.core = atoi(words[1]), b.core = atoi(words[2]);
    long rate = atol(words[4]), burst = atol(words[5]);
    double seconds = atof(words[6]);
    stay(atoi(words[3]));
    static unsigned char bytes[BYTES];
    static uint32_t delays[1 << 20];
    for (mode = KERNEL; mode < MODES; mode++) {
        struct sockaddr_in entry, sink_address, relayed, own;
        int sink = udp(&sink_address), source = udp(&own);
        a.in = udp(&entry), a.out = udp(&own), b.in = udp(&relayed), b.out = udp(&own);
        a.to = mode == KERNEL ? relayed : sink_address, b.to = sink_address;
        atomic_store(&ring_head, 0), atomic_store(&ring_tail, 0), atomic_store(&is_ending, 0);
        prepare(&a), prepare(&b);
        pthread_t threads[2];
        pthread_create(&threads[0], NULL, run, &a);
        pthread_create(&threads[1], NULL, run, &b);
        connect(source, (struct sockaddr *)&entry, sizeof entry);
        uint64_t start = clock_ns(CLOCK_MONOTONIC), end = start + (uint64_t)(seconds * 1e9);
        long sent = 0, received = 0, samples = 0;
        for (uint64_t now = start; now < end + 50000000; now = clock_ns(CLOCK_MONOTONIC)) {
            if (now < end && sent < (long)((now - start) / 1e9 * rate))
                for (long i = 0; i < burst; i++) {
                    unsigned char packet[SIZE] = {0};
                    memcpy(packet, &now, 8);
                    sent += send(source, packet, SIZE, MSG_DONTWAIT) == SIZE;
                }
            ssize_t length = recv(sink, bytes, sizeof bytes, MSG_DONTWAIT);
            for (ssize_t i = 0; i + SIZE <= length; i += SIZE, received++) {
                uint64_t stamp;
                memcpy(&stamp, bytes + i, 8);
                delays[samples++ & ((1 << 20) - 1)] = (clock_ns(CLOCK_MONOTONIC) - stamp) / 1000;
            }
        }
        is_ending = 1;
        eventfd_write(a.wake, 1), eventfd_write(b.wake, 1);
        pthread_join(threads[0], NULL), pthread_join(threads[1], NULL);
        samples = samples > 1 << 20 ? 1 << 20 : samples;
        qsort(delays, samples, sizeof *delays, by_size);
        printf(
            "between=%s cpu_us=%.3f received=%ld lost=%ld delay_p50_us=%u delay_p99_us=%u\n", names[mode],
            received ? (a.cpu + b.cpu) / received * 1e6 : 0, received, sent - received,
            samples ? delays[samples / 2] : 0, samples ? delays[samples * 99 / 100] : 0);
        int fds[] = {sink, source, a.in, a.out, b.in, b.out, a.poller, b.poller, a.wake, b.wake};
        for (size_t i = 0; i < sizeof fds / sizeof *fds; i++) close(fds[i]);
        free(a.arena), free(b.arena), free(a.run), free(b.run);
    }
    return 0;
}
