// Linux socket functions that Glibc does not export to Swift: batches of datagrams with segment sizes, readiness,
// wake-ups, and socket setup. Every function that can fail returns -errno.
#pragma once
#include <netinet/in.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

// The layout of struct mmsghdr, which Glibc declares only as an extension. Checked in CApusNet.c.
typedef struct apus_message {
    struct msghdr header;
    uint32_t length;
} apus_message;

// The size of a received message's control buffer: segment size, TTL, and DSCP with ECN.
enum { APUS_CONTROL_BYTES = 96 };
// A control buffer made by apus_control_prepare. Its parts of APUS_PART_BYTES are ordered so that every used
// combination is contiguous: IPv6's traffic class and hop limit, the segment size, IPv4's TTL and TOS, and again IPv6's
// hop limit and traffic class for sockets of unknown family: a socket ignores marks of the other family.
enum {
    APUS_PART_BYTES = 24, APUS_PART_VALUE = 16, APUS_SEGMENT_PART = 2, APUS_PART_COUNT = 7,
    APUS_SEND_CONTROL_BYTES = 192
};

// recvmmsg and sendmmsg (sendto for a single datagram) without waiting. Returns the number of messages, or -errno.
int apus_receive_messages(int fd, apus_message *messages, uint32_t count);
int apus_send_messages(int fd, apus_message *messages, uint32_t count);

// The kernel's information about a received message.
typedef struct apus_receipt {
    // The size of the equal datagrams that the kernel joined into this message (UDP_GRO); 0 for a single one.
    uint32_t segment;
    // TTL or hop limit in the low byte, DSCP and ECN in the next; 0 if the socket does not report them. Datagrams
    // with different ones are not joined.
    uint32_t marks;
} apus_receipt;

static inline apus_receipt apus_read_receipt(const apus_message *message) {
    apus_receipt receipt = {0, 0};
    const char *part = (const char *)message->header.msg_control;
    size_t left = message->header.msg_controllen;
    while (left >= sizeof(struct cmsghdr)) {
        const struct cmsghdr *header = (const struct cmsghdr *)part;
        if (header->cmsg_len < CMSG_LEN(1) || header->cmsg_len > left) break;
        const unsigned char *value = CMSG_DATA(header);
        uint32_t number = header->cmsg_len >= CMSG_LEN(sizeof(int)) ? (uint32_t) * (const int *)value : *value;
        switch (header->cmsg_level << 8 | header->cmsg_type) {
        case IPPROTO_UDP << 8 | 104: receipt.segment = number; break;
        case IPPROTO_IP << 8 | 2: case IPPROTO_IPV6 << 8 | 52: receipt.marks |= number & 0xff; break;
        case IPPROTO_IP << 8 | 1: case IPPROTO_IPV6 << 8 | 67: receipt.marks |= (number & 0xff) << 8; break;
        default: break;
        }
        size_t step = (header->cmsg_len + 7) & ~(size_t)7;
        if (step >= left) break;
        part += step;
        left -= step;
    }
    return receipt;
}

// Makes a control buffer of APUS_SEND_CONTROL_BYTES with UDP_SEGMENT, whose size apus_set_segment sets (0: do not
// split), and with marks, which apus_set_marks sets. Parts may be left out.
void apus_control_prepare(void *control);
static inline void apus_set_segment(void *control, uint16_t size) {
    *(uint16_t *)((char *)control + APUS_SEGMENT_PART * APUS_PART_BYTES + APUS_PART_VALUE) = size;
}
static inline void apus_set_marks(void *control, uint32_t marks) {
    enum { STEP = APUS_PART_BYTES / sizeof(int) };
    int *values = (int *)((char *)control + APUS_PART_VALUE);
    values[1 * STEP] = values[3 * STEP] = values[5 * STEP] = (int)(marks & 0xff);
    values[0] = values[4 * STEP] = values[6 * STEP] = (int)(marks >> 8 & 0xff);
}

// Makes a socket report TTL or hop limit, and DSCP with ECN, of received datagrams.
void apus_datagram_report_marks(int fd);
// Sets the marks of datagrams that a socket sends without marks of their own.
void apus_datagram_mark(int fd, uint32_t marks);

// 1 if the kernel joins received datagrams (UDP_GRO) and splits sent ones (UDP_SEGMENT).
int apus_can_join(void);
int apus_can_segment(void);
// The most datagrams into which the kernel splits one message, up to 128; 64 if it cannot be tested.
int apus_segments_max(void);

// A bound, non-blocking datagram socket. The kernel buffers have the requested size if the process may set it,
// otherwise the most that the system allows.
int apus_datagram_open(
    const struct sockaddr *address, socklen_t length, int reuse_port, int join, int receive_bytes, int send_bytes);
// A bound, non-blocking datagram socket. It accepts both families if its address is [::].
int apus_heartbeat_open(const struct sockaddr *address, socklen_t length, int buffer_bytes);
// A bound, non-blocking stream socket for a listener whose refusals prove that its process is dead. Its descriptor is
// as high as the limit of open files allows, at most 65,535: the kernel closes the descriptors of a killed process from
// the highest down. A peer that sees one of the process's connections end is therefore refused when it dials again.
int apus_listener_open(const struct sockaddr *address, socklen_t length);
// Datagrams that the kernel dropped since the socket was opened, because its buffer was full.
uint32_t apus_datagram_drops(int fd);
// Sets the single peer of a datagram socket; NULL removes it.
int apus_datagram_connect(int fd, const struct sockaddr *address, socklen_t length);
// Sets whether other sockets that share ports may be bound to the address of a datagram socket from now on
// (SO_REUSEPORT).
void apus_datagram_share(int fd, int is_shared);
// Sets whether datagrams of a socket may be fragmented (1), or carry "don't fragment" (0).
void apus_datagram_fragments(int fd, int may_fragment);
// Makes the socket queue ICMP errors about its datagrams, for apus_datagram_take_error (IP_RECVERR): 0 or -errno.
int apus_datagram_report_errors(int fd);
// The reason for which a datagram did not arrive.
enum { APUS_ORIGIN_LOCAL = 1, APUS_ORIGIN_ICMP = 2, APUS_ORIGIN_ICMP6 = 3 };
typedef struct apus_datagram_error {
    // The destination of the datagram, of either family. Its port is 0 if the error is the machine's own.
    struct sockaddr_in6 peer;
    // For a datagram that was too long: the path MTU.
    uint32_t info;
    int32_t number;
    uint8_t origin, type, code;
} apus_datagram_error;
// Removes an error from the socket's queue: 1, 0 if there is none, or -errno.
int apus_datagram_take_error(int fd, apus_datagram_error *error);
int apus_send_to(int fd, const void *bytes, size_t count, const struct sockaddr *address, socklen_t length);

// A listening, non-blocking stream socket, and a connection of it.
int apus_stream_listen(const struct sockaddr *address, socklen_t length, int reuse_port, int backlog);
int apus_stream_accept(int fd, struct sockaddr *address, socklen_t *length);

// A reserved descriptor, to be closed when another one is needed; or -errno.
int apus_spare_open(void);

// A listening, non-blocking stream socket with an exclusive port, from which apus_stream_connect connects.
int apus_stream_relay_open(const struct sockaddr *address, socklen_t length, int backlog);
// Starts to connect from such a socket's address. The new socket is writable when that has succeeded or failed.
int apus_stream_connect(
    const struct sockaddr *local, socklen_t local_length, const struct sockaddr *peer, socklen_t peer_length);
// The result of a connect: 0 or -errno.
int apus_stream_result(int fd);
// Shuts down the sending side.
void apus_stream_end(int fd);

// Bytes read or written now, or -errno.
ssize_t apus_read(int fd, void *bytes, size_t count);
ssize_t apus_write(int fd, const void *bytes, size_t count);
void apus_close(int fd);
// Another descriptor of the same socket.
int apus_duplicate(int fd);

// The address that a socket is bound to: 0 or -errno.
int apus_local_address(int fd, struct sockaddr *address, socklen_t *length);

// Readiness: a level-triggered epoll. Each entry carries a number of the caller's.
typedef struct apus_ready {
    uint64_t token;
    uint32_t events;
} apus_ready;
enum { APUS_READABLE = 1, APUS_WRITABLE = 4, APUS_FAILED = 8, APUS_HUNG_UP = 16 };
int apus_poll_open(void);
int apus_poll_add(int poll, int fd, uint32_t events, uint64_t token);
int apus_poll_change(int poll, int fd, uint32_t events, uint64_t token);
int apus_poll_remove(int poll, int fd);
// At most 256 entries. A negative time waits indefinitely.
int apus_poll_wait(int poll, apus_ready *ready, int count, int milliseconds);

// A descriptor that becomes readable periodically. It costs less than a time-out of each wait. 0 milliseconds stop it;
// apus_wake_clear empties it.
int apus_clock_open(void);
void apus_clock_set(int fd, int milliseconds);
// Wakes a thread that waits in apus_poll_wait.
int apus_wake_open(void);
void apus_wake(int fd);
void apus_wake_clear(int fd);

// Sleeps for a millisecond: for a thread that waits for room in another one's queue.
void apus_pause(void);

// A short sleep of the calling thread. apus_rest_prepare makes it exact; without it Linux adds up to 50 microseconds.
void apus_rest_prepare(void);
void apus_rest(int microseconds);
// The CPU time of the calling thread, in nanoseconds.
uint64_t apus_thread_time(void);

// Raises the process's limit of open files as far as the system allows: each allocation needs a descriptor.
void apus_raise_descriptors(void);
