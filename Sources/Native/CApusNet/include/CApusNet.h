// What Glibc does not export to Swift of Linux's sockets: batches of datagrams with their segment
// sizes, readiness, wake-ups, and set-up of sockets. Every function that can fail returns -errno.
#pragma once
#include <netinet/in.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

// The layout of struct mmsghdr, which Glibc shows only to its own extensions; checked in CApusNet.c.
typedef struct apus_message {
    struct msghdr header;
    uint32_t length;
} apus_message;

// Bytes of a received message's control buffer: what the kernel joined, TTL, and DSCP with ECN.
enum { APUS_CONTROL_BYTES = 96 };
// A control buffer made by apus_control_prepare, of parts of APUS_PART_BYTES that stand so that whatever belongs together
// is in one piece: IPv6's traffic class and hop limit, the segment size, IPv4's TTL and TOS, and once more IPv6's hop
// limit and traffic class for sockets whose family is not known: a socket passes over marks of the other family.
enum {
    APUS_PART_BYTES = 24, APUS_PART_VALUE = 16, APUS_SEGMENT_PART = 2, APUS_PART_COUNT = 7,
    APUS_SEND_CONTROL_BYTES = 192
};

// recvmmsg and sendmmsg (of a single datagram sendto) without waiting: the number of messages, or -errno.
int apus_receive_messages(int fd, apus_message *messages, uint32_t count);
int apus_send_messages(int fd, apus_message *messages, uint32_t count);

// What the kernel says of a received message.
typedef struct apus_receipt {
    // The size of the equal datagrams that it joined into this message (UDP_GRO); 0 for a single one.
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

// Makes a control buffer of APUS_SEND_CONTROL_BYTES that asks for UDP_SEGMENT, whose size apus_set_segment writes (0:
// do not cut), and for marks, which apus_set_marks writes. Parts may be left out.
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

// Has a socket report TTL or hop limit, and DSCP with ECN, of what it receives.
void apus_datagram_report_marks(int fd);
// Gives marks to whatever a datagram socket sends without marks of its own.
void apus_datagram_mark(int fd, uint32_t marks);

// 1 if the kernel joins received datagrams (UDP_GRO), cuts sent ones (UDP_SEGMENT).
int apus_can_join(void);
int apus_can_segment(void);
// Datagrams that the kernel cuts out of one message at most, as far as 128 go; 64 if it cannot be tried.
int apus_segments_max(void);

// A bound, non-blocking datagram socket. Bytes of kernel buffers are what is asked for where the
// process may, else the most that the system gives.
int apus_datagram_open(
    const struct sockaddr *address, socklen_t length, int reuse_port, int join, int receive_bytes, int send_bytes);
// A bound, non-blocking datagram socket that takes both families where its address is [::].
int apus_heartbeat_open(const struct sockaddr *address, socklen_t length, int buffer_bytes);
// A bound, non-blocking stream socket for a listener whose refusals tell that its process is dead. Its number is as high
// as the limit of open files allows, 65,535 at most: the kernel closes the descriptors of a process that was killed from
// the highest number down, so that whoever sees one of its connections end is refused when it dials again.
int apus_listener_open(const struct sockaddr *address, socklen_t length);
// Datagrams that the kernel dropped since the socket was opened, because its buffer was full.
uint32_t apus_datagram_drops(int fd);
// Sets the one peer of a datagram socket, or none where the address is NULL.
int apus_datagram_connect(int fd, const struct sockaddr *address, socklen_t length);
// Whether other sockets that share ports may be bound to the address of a datagram socket from here on (SO_REUSEPORT).
void apus_datagram_share(int fd, int is_shared);
// Whether datagrams of a socket may be fragmented on their way (1), or carry "don't fragment" (0).
void apus_datagram_fragments(int fd, int may_fragment);
// Has the socket keep what ICMP tells of its datagrams, for apus_datagram_take_error (IP_RECVERR): 0 or -errno.
int apus_datagram_report_errors(int fd);
// Why a datagram did not arrive.
enum { APUS_ORIGIN_LOCAL = 1, APUS_ORIGIN_ICMP = 2, APUS_ORIGIN_ICMP6 = 3 };
typedef struct apus_datagram_error {
    // Where the datagram was to go, of either family; its port is 0 if the error is the machine's own.
    struct sockaddr_in6 peer;
    // With a datagram that was too long: what the way takes.
    uint32_t info;
    int32_t number;
    uint8_t origin, type, code;
} apus_datagram_error;
// Takes one out of the socket's queue of errors: 1, 0 if there is none, or -errno.
int apus_datagram_take_error(int fd, apus_datagram_error *error);
int apus_send_to(int fd, const void *bytes, size_t count, const struct sockaddr *address, socklen_t length);

// A listening, non-blocking stream socket, and a connection of it.
int apus_stream_listen(const struct sockaddr *address, socklen_t length, int reuse_port, int backlog);
int apus_stream_accept(int fd, struct sockaddr *address, socklen_t *length);

// A descriptor that is kept open for nothing, to be closed when another one is needed; -errno.
int apus_spare_open(void);

// A listening, non-blocking stream socket whose port nobody else has, and from which apus_stream_connect connects.
int apus_stream_relay_open(const struct sockaddr *address, socklen_t length, int backlog);
// Begins to connect from such a socket's address; writable when that has succeeded or failed.
int apus_stream_connect(
    const struct sockaddr *local, socklen_t local_length, const struct sockaddr *peer, socklen_t peer_length);
// How connecting ended: 0 or -errno.
int apus_stream_result(int fd);
// Says that nothing more will be written.
void apus_stream_end(int fd);

// Bytes read or written now, or -errno.
ssize_t apus_read(int fd, void *bytes, size_t count);
ssize_t apus_write(int fd, const void *bytes, size_t count);
void apus_close(int fd);
// Another descriptor of the same socket.
int apus_duplicate(int fd);

// The address that a socket is bound to: 0 or -errno.
int apus_local_address(int fd, struct sockaddr *address, socklen_t *length);

// Readiness: a level-triggered epoll whose entries carry a number of the caller's.
typedef struct apus_ready {
    uint64_t token;
    uint32_t events;
} apus_ready;
enum { APUS_READABLE = 1, APUS_WRITABLE = 4, APUS_FAILED = 8, APUS_HUNG_UP = 16 };
int apus_poll_open(void);
int apus_poll_add(int poll, int fd, uint32_t events, uint64_t token);
int apus_poll_change(int poll, int fd, uint32_t events, uint64_t token);
int apus_poll_remove(int poll, int fd);
// At most 256 entries; a negative time waits without end.
int apus_poll_wait(int poll, apus_ready *ready, int count, int milliseconds);

// A descriptor that becomes readable again and again: cheaper than a timeout of each wait. 0 milliseconds stop it;
// apus_wake_clear empties it.
int apus_clock_open(void);
void apus_clock_set(int fd, int milliseconds);
// Wakes a thread that waits in apus_poll_wait.
int apus_wake_open(void);
void apus_wake(int fd);
void apus_wake_clear(int fd);

// Sleeps for a millisecond: what a thread does that waits for another one's room.
void apus_pause(void);

// A short sleep of the calling thread, which apus_rest_prepare has made exact: without, Linux adds up to 50 microseconds.
void apus_rest_prepare(void);
void apus_rest(int microseconds);
// CPU time that the calling thread has used, in nanoseconds.
uint64_t apus_thread_time(void);

// Lets the process have as many descriptors as the system allows it: each allocation has one.
void apus_raise_descriptors(void);
