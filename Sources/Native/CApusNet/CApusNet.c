#define _GNU_SOURCE
#include "CApusNet.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/errqueue.h>
#include <netinet/tcp.h>
#include <netinet/udp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif

_Static_assert(sizeof(apus_message) == sizeof(struct mmsghdr), "a message is a struct mmsghdr");
_Static_assert(
    offsetof(apus_message, length) == offsetof(struct mmsghdr, msg_len), "a message is a struct mmsghdr");
_Static_assert(CMSG_LEN(0) == APUS_PART_VALUE, "a value follows the control header");
_Static_assert(CMSG_SPACE(sizeof(uint16_t)) == APUS_PART_BYTES, "a control message of one uint16_t");
_Static_assert(CMSG_SPACE(sizeof(int)) == APUS_PART_BYTES, "a control message of one int");
_Static_assert(APUS_PART_COUNT * APUS_PART_BYTES <= APUS_SEND_CONTROL_BYTES, "room for all control messages");
_Static_assert(UDP_GRO == 104, "the number in the header");
_Static_assert(IP_TOS == 1 && IP_TTL == 2, "the numbers in the header");
_Static_assert(IPV6_HOPLIMIT == 52 && IPV6_TCLASS == 67, "the numbers in the header");
_Static_assert(APUS_READABLE == EPOLLIN && APUS_WRITABLE == EPOLLOUT, "events of epoll");
_Static_assert(APUS_FAILED == EPOLLERR && APUS_HUNG_UP == EPOLLHUP, "events of epoll");

// The system calls of each packet are made directly. The library's functions are cancellation points, which no thread
// here uses; in a process with threads each of them changes the thread's state twice.
int apus_receive_messages(int fd, apus_message *messages, uint32_t count) {
    long result = syscall(SYS_recvmmsg, fd, messages, count, MSG_DONTWAIT, NULL);
    return result < 0 ? -errno : (int)result;
}

int apus_send_messages(int fd, apus_message *messages, uint32_t count) {
    const struct msghdr *first = &messages[0].header;
    // One datagram from one piece of memory: the kernel need not read a message header.
    if (count == 1 && first->msg_iovlen == 1 && first->msg_controllen == 0) {
        long sent = syscall(
            SYS_sendto, fd, first->msg_iov->iov_base, first->msg_iov->iov_len, MSG_DONTWAIT | MSG_NOSIGNAL,
            first->msg_name, first->msg_namelen);
        return sent < 0 ? -errno : 1;
    }
    long result = syscall(SYS_sendmmsg, fd, messages, count, MSG_DONTWAIT | MSG_NOSIGNAL);
    return result < 0 ? -errno : (int)result;
}

static void prepare(void *control, size_t index, int level, int type, size_t count) {
    struct cmsghdr *header = (struct cmsghdr *)((char *)control + index * APUS_PART_BYTES);
    header->cmsg_level = level;
    header->cmsg_type = type;
    header->cmsg_len = CMSG_LEN(count);
}

void apus_control_prepare(void *control) {
    memset(control, 0, APUS_SEND_CONTROL_BYTES);
    prepare(control, 0, IPPROTO_IPV6, IPV6_TCLASS, sizeof(int));
    prepare(control, 1, IPPROTO_IPV6, IPV6_HOPLIMIT, sizeof(int));
    prepare(control, APUS_SEGMENT_PART, IPPROTO_UDP, UDP_SEGMENT, sizeof(uint16_t));
    prepare(control, 3, IPPROTO_IP, IP_TTL, sizeof(int));
    prepare(control, 4, IPPROTO_IP, IP_TOS, sizeof(int));
    prepare(control, 5, IPPROTO_IPV6, IPV6_HOPLIMIT, sizeof(int));
    prepare(control, 6, IPPROTO_IPV6, IPV6_TCLASS, sizeof(int));
}

void apus_datagram_report_marks(int fd) {
    int one = 1;
    if (setsockopt(fd, IPPROTO_IPV6, IPV6_RECVTCLASS, &one, sizeof one) == 0) {
        setsockopt(fd, IPPROTO_IPV6, IPV6_RECVHOPLIMIT, &one, sizeof one);
        return;
    }
    setsockopt(fd, IPPROTO_IP, IP_RECVTOS, &one, sizeof one);
    setsockopt(fd, IPPROTO_IP, IP_RECVTTL, &one, sizeof one);
}

void apus_datagram_mark(int fd, uint32_t marks) {
    int hops = (int)(marks & 0xff), traffic = (int)(marks >> 8 & 0xff);
    if (setsockopt(fd, IPPROTO_IPV6, IPV6_TCLASS, &traffic, sizeof traffic) == 0) {
        setsockopt(fd, IPPROTO_IPV6, IPV6_UNICAST_HOPS, &hops, sizeof hops);
        return;
    }
    setsockopt(fd, IPPROTO_IP, IP_TOS, &traffic, sizeof traffic);
    setsockopt(fd, IPPROTO_IP, IP_TTL, &hops, sizeof hops);
}

static int can(int option, int value) {
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return 0;
    int result = setsockopt(fd, IPPROTO_UDP, option, &value, sizeof value);
    close(fd);
    return result == 0;
}

int apus_can_join(void) { return can(UDP_GRO, 1); }
int apus_can_segment(void) { return can(UDP_SEGMENT, 1200); }

// Linux splits a message into up to 64 datagrams, since 6.9 into up to 128. It reports this for no socket, so a
// loopback socket sends that many to itself.
int apus_segments_max(void) {
    enum { LEAST = 64, MOST = 128 };
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), size = 1;
    if (fd < 0) return LEAST;
    char bytes[MOST] = {0};
    int is_sent = bind(fd, (struct sockaddr *)&address, length) == 0
        && getsockname(fd, (struct sockaddr *)&address, &length) == 0
        && connect(fd, (struct sockaddr *)&address, length) == 0
        && setsockopt(fd, IPPROTO_UDP, UDP_SEGMENT, &size, sizeof size) == 0
        && send(fd, bytes, sizeof bytes, MSG_DONTWAIT | MSG_NOSIGNAL) == sizeof bytes;
    close(fd);
    return is_sent ? MOST : LEAST;
}

static void set_buffer(int fd, int forced, int plain, int bytes) {
    if (bytes <= 0) return;
    if (setsockopt(fd, SOL_SOCKET, forced, &bytes, sizeof bytes) == 0) return;
    setsockopt(fd, SOL_SOCKET, plain, &bytes, sizeof bytes);
}

/// 0 if the system must choose. IPv4 and IPv6 have the port at the same offset.
static int port_of(const struct sockaddr *address) { return ((const struct sockaddr_in *)address)->sin_port; }

/// A port that the system chooses must be exclusive. Among sockets that share ports, the system may choose a port in
/// use for datagrams (at random), and a port that may be bound again would be lost to an earlier listener. Others share
/// it afterwards.
static int open_bound(const struct sockaddr *address, socklen_t length, int type, int reuse_port) {
    int fd = socket(address->sa_family, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return -errno;
    int one = 1;
    int failed = 0, is_given = port_of(address) != 0;
    if (address->sa_family == AF_INET6) failed |= setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof one);
    if (reuse_port && is_given) failed |= setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one);
    if (type == SOCK_STREAM && is_given) failed |= setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (failed || bind(fd, address, length) < 0
        || (reuse_port && setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one) < 0)) {
        int error = errno;
        close(fd);
        return -error;
    }
    return fd;
}

int apus_datagram_open(
    const struct sockaddr *address, socklen_t length, int reuse_port, int join, int receive_bytes, int send_bytes) {
    int fd = open_bound(address, length, SOCK_DGRAM, reuse_port);
    if (fd < 0) return fd;
    int one = 1;
    if (join) setsockopt(fd, IPPROTO_UDP, UDP_GRO, &one, sizeof one);
    set_buffer(fd, SO_RCVBUFFORCE, SO_RCVBUF, receive_bytes);
    set_buffer(fd, SO_SNDBUFFORCE, SO_SNDBUF, send_bytes);
    return fd;
}

int apus_heartbeat_open(const struct sockaddr *address, socklen_t length, int buffer_bytes) {
    int fd = socket(address->sa_family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return -errno;
    set_buffer(fd, SO_RCVBUFFORCE, SO_RCVBUF, buffer_bytes);
    if (bind(fd, address, length) == 0) return fd;
    int error = errno;
    close(fd);
    return -error;
}

// The same socket under a high number; under its own if none is free.
static int raised(int fd) {
    enum { NUMBERS_MAX = 1 << 16, ROOM = 16 };
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0) return fd;
    int end = limit.rlim_cur < NUMBERS_MAX ? (int)limit.rlim_cur : NUMBERS_MAX;
    // Further listeners of the process have room above the first.
    int high = end > ROOM ? fcntl(fd, F_DUPFD_CLOEXEC, end - ROOM) : -1;
    if (high < 0) return fd;
    close(fd);
    return high;
}

int apus_listener_open(const struct sockaddr *address, socklen_t length) {
    int fd = socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return -errno;
    int yes = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(fd, address, length) == 0) return raised(fd);
    int error = errno;
    close(fd);
    return -error;
}

uint32_t apus_datagram_drops(int fd) {
    // linux/sock_diag.h, SK_MEMINFO_DROPS.
    enum { DROPS = 8, COUNT = 9 };
    uint32_t figures[COUNT] = {0};
    socklen_t length = sizeof figures;
    if (getsockopt(fd, SOL_SOCKET, SO_MEMINFO, figures, &length) < 0) return 0;
    return figures[DROPS];
}

int apus_datagram_connect(int fd, const struct sockaddr *address, socklen_t length) {
    struct sockaddr none = {.sa_family = AF_UNSPEC};
    int result = address ? connect(fd, address, length) : connect(fd, &none, sizeof none);
    return result < 0 ? -errno : 0;
}

void apus_datagram_share(int fd, int is_shared) {
    setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &is_shared, sizeof is_shared);
}

void apus_datagram_fragments(int fd, int may_fragment) {
    int value = may_fragment ? IP_PMTUDISC_WANT : IP_PMTUDISC_DO;
    // An IPv6 socket accepts IPv4's option too, and ignores it. An IPv4 socket refuses that of IPv6.
    if (setsockopt(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, &value, sizeof value) == 0) return;
    setsockopt(fd, IPPROTO_IP, IP_MTU_DISCOVER, &value, sizeof value);
}

_Static_assert(APUS_ORIGIN_LOCAL == SO_EE_ORIGIN_LOCAL, "origins of errors");
_Static_assert(APUS_ORIGIN_ICMP == SO_EE_ORIGIN_ICMP, "origins of errors");
_Static_assert(APUS_ORIGIN_ICMP6 == SO_EE_ORIGIN_ICMP6, "origins of errors");

int apus_datagram_report_errors(int fd) {
    int one = 1;
    if (setsockopt(fd, IPPROTO_IPV6, IPV6_RECVERR, &one, sizeof one) == 0) return 0;
    return setsockopt(fd, IPPROTO_IP, IP_RECVERR, &one, sizeof one) < 0 ? -errno : 0;
}

int apus_datagram_take_error(int fd, apus_datagram_error *error) {
    _Alignas(struct cmsghdr) char control[512];
    char payload[1];
    memset(error, 0, sizeof *error);
    struct iovec vector = {.iov_base = payload, .iov_len = sizeof payload};
    struct msghdr message = {
        .msg_name = &error->peer, .msg_namelen = sizeof error->peer, .msg_iov = &vector, .msg_iovlen = 1,
        .msg_control = control, .msg_controllen = sizeof control};
    if (recvmsg(fd, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) return errno == EAGAIN ? 0 : -errno;
    for (struct cmsghdr *part = CMSG_FIRSTHDR(&message); part; part = CMSG_NXTHDR(&message, part)) {
        int is_v4 = part->cmsg_level == IPPROTO_IP && part->cmsg_type == IP_RECVERR;
        int is_v6 = part->cmsg_level == IPPROTO_IPV6 && part->cmsg_type == IPV6_RECVERR;
        if ((!is_v4 && !is_v6) || part->cmsg_len < CMSG_LEN(sizeof(struct sock_extended_err))) continue;
        struct sock_extended_err told;
        memcpy(&told, CMSG_DATA(part), sizeof told);
        error->info = told.ee_info;
        error->number = (int32_t)told.ee_errno;
        error->origin = told.ee_origin;
        error->type = told.ee_type;
        error->code = told.ee_code;
    }
    return 1;
}

int apus_send_to(int fd, const void *bytes, size_t count, const struct sockaddr *address, socklen_t length) {
    ssize_t result = sendto(fd, bytes, count, MSG_DONTWAIT | MSG_NOSIGNAL, address, length);
    return result < 0 ? -errno : 0;
}

int apus_stream_listen(const struct sockaddr *address, socklen_t length, int reuse_port, int backlog) {
    int fd = open_bound(address, length, SOCK_STREAM, reuse_port);
    if (fd < 0) return fd;
    if (listen(fd, backlog) < 0) {
        int error = errno;
        close(fd);
        return -error;
    }
    return fd;
}

int apus_stream_accept(int fd, struct sockaddr *address, socklen_t *length) {
    int connection = accept4(fd, address, length, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (connection < 0) return -errno;
    int one = 1;
    setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return connection;
}

int apus_spare_open(void) {
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

int apus_stream_relay_open(const struct sockaddr *address, socklen_t length, int backlog) {
    int fd = apus_stream_listen(address, length, 0, backlog);
    if (fd < 0) return fd;
    // The port was bound and is listened at without sharing, so no other process has it. From now on sockets of the
    // same user that ask for it may be bound there too, to connect from it.
    int one = 1;
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one) < 0) {
        int error = errno;
        close(fd);
        return -error;
    }
    return fd;
}

int apus_stream_connect(
    const struct sockaddr *local, socklen_t local_length, const struct sockaddr *peer, socklen_t peer_length) {
    int fd = open_bound(local, local_length, SOCK_STREAM, 1);
    if (fd < 0) return fd;
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(fd, peer, peer_length) < 0 && errno != EINPROGRESS) {
        int error = errno;
        close(fd);
        return -error;
    }
    return fd;
}

int apus_stream_result(int fd) {
    int error = 0;
    socklen_t length = sizeof error;
    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) < 0 ? -errno : -error;
}

void apus_stream_end(int fd) { shutdown(fd, SHUT_WR); }

ssize_t apus_read(int fd, void *bytes, size_t count) {
    ssize_t result = recv(fd, bytes, count, MSG_DONTWAIT);
    return result < 0 ? -errno : result;
}

ssize_t apus_write(int fd, const void *bytes, size_t count) {
    ssize_t result = send(fd, bytes, count, MSG_DONTWAIT | MSG_NOSIGNAL);
    return result < 0 ? -errno : result;
}

void apus_close(int fd) { close(fd); }

int apus_duplicate(int fd) {
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    return copy < 0 ? -errno : copy;
}

int apus_local_address(int fd, struct sockaddr *address, socklen_t *length) {
    return getsockname(fd, address, length) < 0 ? -errno : 0;
}

int apus_poll_open(void) {
    int fd = epoll_create1(EPOLL_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

static int control(int poll, int operation, int fd, uint32_t events, uint64_t token) {
    struct epoll_event event = {.events = events, .data.u64 = token};
    return epoll_ctl(poll, operation, fd, &event) < 0 ? -errno : 0;
}

int apus_poll_add(int poll, int fd, uint32_t events, uint64_t token) {
    return control(poll, EPOLL_CTL_ADD, fd, events, token);
}

int apus_poll_change(int poll, int fd, uint32_t events, uint64_t token) {
    return control(poll, EPOLL_CTL_MOD, fd, events, token);
}

int apus_poll_remove(int poll, int fd) { return control(poll, EPOLL_CTL_DEL, fd, 0, 0); }

int apus_poll_wait(int poll, apus_ready *ready, int count, int milliseconds) {
    struct epoll_event events[256];
    long result = syscall(SYS_epoll_pwait, poll, events, count < 256 ? count : 256, milliseconds, NULL, 0);
    if (result < 0) return -errno;
    for (int i = 0; i < result; i++) {
        ready[i].token = events[i].data.u64;
        ready[i].events = events[i].events;
    }
    return (int)result;
}

int apus_clock_open(void) {
    int fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

void apus_clock_set(int fd, int milliseconds) {
    struct timespec interval = {.tv_sec = milliseconds / 1000, .tv_nsec = milliseconds % 1000 * 1000000L};
    struct itimerspec times = {.it_interval = interval, .it_value = interval};
    timerfd_settime(fd, 0, &times, NULL);
}

int apus_wake_open(void) {
    int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

void apus_wake(int fd) {
    uint64_t one = 1;
    // A full counter means that the reader has been woken already.
    if (write(fd, &one, sizeof one) < 0) return;
}

void apus_wake_clear(int fd) {
    uint64_t count;
    if (read(fd, &count, sizeof count) < 0) return;
}

void apus_pause(void) { usleep(1000); }

void apus_rest_prepare(void) { prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL); }

void apus_rest(int microseconds) {
    struct timespec time = {.tv_nsec = microseconds * 1000L};
    syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &time, NULL);
}

uint64_t apus_thread_time(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

void apus_raise_descriptors(void) {
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) < 0 || files.rlim_cur == files.rlim_max) return;
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
}
