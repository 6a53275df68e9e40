// The relay's packet plane once more, in C: what the loop of Sources/Edges/ApusRelay is measured against.
//     twin PORT
// One thread, epoll, recvmmsg with UDP_GRO, runs of equal datagrams copied together and sent as one UDP_SEGMENT
// message, client and channel found in open hash tables, relay sockets connected once they have carried much. It answers every Allocate and ChannelBind of loopback clients
// without asking who they are, and forgets nothing: a load generator's partner and no TURN server.
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

enum { DEPTH = 64, BUFFER = 65536, STRIDE = 65536 + 448, PACKETS = 4096, RUNS = 1024, ROWS = 16384, TABLE = 32768 };
enum { GATHERED = 131072, HOT = 1024 };

struct row {
    int fd;
    struct sockaddr_in client, peer;
    uint16_t channel;
    uint32_t heat;
    uint32_t up_stamp, up_run, down_stamp, down_run;
    uint64_t up_packets, up_bytes, down_packets, down_bytes;
};
struct packet {
    uint32_t head, length;
    unsigned char *base;
    uint32_t next;
};
struct run {
    struct sockaddr_in *name;
    int fd, has_head, closed;
    uint32_t size, total, count, first, last;
};

static struct row rows[ROWS];
static uint32_t row_count, table[TABLE];
static unsigned char *arena;
static struct mmsghdr in[DEPTH], out[RUNS];
static struct iovec in_vectors[DEPTH], out_vectors[RUNS * 2];
static struct sockaddr_in names[DEPTH];
static unsigned char in_controls[DEPTH][64], out_controls[RUNS][32];
static unsigned char gathered[GATHERED];
static struct packet packets[PACKETS];
static struct run runs[RUNS];
static uint32_t packet_count, run_count, stamp = 1;
static int listener, poller, arena_used;

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static uint32_t home(const struct sockaddr_in *address) {
    uint64_t hash = ((uint64_t)address->sin_addr.s_addr << 16 | address->sin_port) * 0x9E3779B97F4A7C15u;
    return (hash ^ hash >> 32) & (TABLE - 1);
}

static struct row *find(const struct sockaddr_in *client) {
    for (uint32_t i = home(client); table[i] != 0; i = (i + 1) & (TABLE - 1)) {
        struct row *row = &rows[table[i] - 1];
        if (row->client.sin_port == client->sin_port && row->client.sin_addr.s_addr == client->sin_addr.s_addr)
            return row;
    }
    return NULL;
}

static int open_socket(int port, int bytes) {
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0), one = 1;
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) < 0) fail("bind");
    setsockopt(fd, IPPROTO_UDP, UDP_GRO, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof bytes);
    setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof bytes);
    return fd;
}

static void watch(int fd, uint64_t token) {
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = token};
    if (epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event) < 0) fail("epoll_ctl");
}

static void fill(struct run *run, int message, unsigned char *place) {
    struct iovec *vector = &out_vectors[2 * message];
    struct msghdr *header = &out[message].msg_hdr;
    header->msg_name = run->name;
    header->msg_namelen = run->name == NULL ? 0 : sizeof *run->name;
    header->msg_iov = vector;
    if (run->count == 1) {
        struct packet *packet = &packets[run->first];
        vector[0] = (struct iovec){&packet->head, 4};
        vector[run->has_head] = (struct iovec){packet->base, packet->length};
        header->msg_iovlen = 1 + run->has_head;
        header->msg_control = NULL;
        header->msg_controllen = 0;
        return;
    }
    vector[0] = (struct iovec){place, run->total};
    header->msg_iovlen = 1;
    for (uint32_t i = run->first; i != UINT32_MAX; i = packets[i].next) {
        if (run->has_head) {
            memcpy(place, &packets[i].head, 4);
            place += 4;
        }
        memcpy(place, packets[i].base, packets[i].length);
        place += packets[i].length;
    }
    uint16_t size = run->size;
    memcpy(out_controls[message] + CMSG_LEN(0), &size, 2);
    header->msg_control = out_controls[message];
    header->msg_controllen = CMSG_SPACE(2);
}

static void flush(void) {
    for (uint32_t next = 0; next < run_count;) {
        uint32_t first = next, used = 0;
        int fd = runs[next].fd;
        for (; next < run_count && runs[next].fd == fd; next++) {
            uint32_t total = runs[next].count > 1 ? runs[next].total : 0;
            if (used + total > GATHERED) break;
            fill(&runs[next], next - first, gathered + used);
            used += total;
        }
        for (uint32_t done = 0; done < next - first;) {
            int count = sendmmsg(fd, out + done, next - first - done, MSG_DONTWAIT);
            done += count > 0 ? count : 1;
        }
    }
    packet_count = run_count = 0;
    stamp++;
}

static void add(
    unsigned char *base, uint32_t length, int has_head, uint32_t head, uint32_t *mark_stamp, uint32_t *mark_run, int fd,
    struct sockaddr_in *name) {
    if (packet_count == PACKETS || run_count == RUNS) flush();
    uint32_t size = length + (has_head ? 4 : 0), index = packet_count++;
    packets[index] = (struct packet){head, length, base, UINT32_MAX};
    if (*mark_stamp == stamp) {
        struct run *run = &runs[*mark_run];
        if (!run->closed && size <= run->size && run->count < 64 && run->total + size <= 65000) {
            packets[run->last].next = index;
            run->last = index;
            run->count++;
            run->total += size;
            if (size < run->size) run->closed = 1;
            return;
        }
    }
    *mark_stamp = stamp;
    *mark_run = run_count;
    runs[run_count++] = (struct run){name, fd, has_head, size > 1452, size, size, 1, index, index};
}

// Answers Allocate (with a relayed address that is the loopback) and ChannelBind.
static void control(unsigned char *bytes, int count, struct sockaddr_in *client) {
    unsigned type = bytes[0] << 8 | bytes[1];
    struct row *row = find(client);
    unsigned char answer[64] = {0};
    int length = 0;
    if (type == 0x003) {
        if (row == NULL) {
            if (row_count == ROWS / 2) return;
            row = &rows[row_count++];
            row->client = *client;
            row->fd = open_socket(0, 512 << 10);
            uint32_t i = home(client);
            while (table[i] != 0) i = (i + 1) & (TABLE - 1);
            table[i] = row_count;
            watch(row->fd, row_count);
        }
        struct sockaddr_in relayed;
        socklen_t size = sizeof relayed;
        getsockname(row->fd, (struct sockaddr *)&relayed, &size);
        unsigned port = ntohs(relayed.sin_port) ^ 0x2112, address = htonl(INADDR_LOOPBACK ^ 0x2112A442);
        unsigned char value[12] = {0, 0x16, 0, 8, 0, 1, port >> 8, port};
        memcpy(value + 8, &address, 4);
        memcpy(answer + 20, value, 12);
        length = 12;
    } else if (type == 0x009 && row != NULL) {
        for (int offset = 20; offset + 4 <= count;) {
            unsigned kind = bytes[offset] << 8 | bytes[offset + 1], size = bytes[offset + 2] << 8 | bytes[offset + 3];
            if (kind == 0x000C) row->channel = bytes[offset + 4] << 8 | bytes[offset + 5];
            if (kind == 0x0012) {
                uint32_t address;
                memcpy(&address, bytes + offset + 8, 4);
                row->peer.sin_family = AF_INET;
                row->peer.sin_port = htons((bytes[offset + 6] << 8 | bytes[offset + 7]) ^ 0x2112);
                row->peer.sin_addr.s_addr = address ^ htonl(0x2112A442);
            }
            offset += 4 + ((size + 3) & ~3u);
        }
    } else {
        return;
    }
    answer[0] = 0x01, answer[1] = type, answer[3] = length;
    memcpy(answer + 4, bytes + 4, 16);
    sendto(listener, answer, 20 + length, MSG_DONTWAIT, (struct sockaddr *)client, sizeof *client);
}

static int receive(int fd, int first) {
    for (int i = first; i < DEPTH; i++) {
        in[i].msg_hdr.msg_namelen = sizeof names[i];
        in[i].msg_hdr.msg_controllen = 64;
    }
    return recvmmsg(fd, in + first, DEPTH - first, MSG_DONTWAIT, NULL);
}

static int joined_size(struct mmsghdr *message) {
    struct cmsghdr *header = CMSG_FIRSTHDR(&message->msg_hdr);
    return header != NULL && header->cmsg_type == UDP_GRO ? *(int *)CMSG_DATA(header) : (int)message->msg_len;
}

static void from_client(int i) {
    struct row *row = find(&names[i]);
    int length = in[i].msg_len, segment = joined_size(&in[i]);
    for (int offset = 0; offset < length; offset += segment) {
        unsigned char *bytes = arena + (size_t)i * STRIDE + offset;
        int size = length - offset < segment ? length - offset : segment;
        if (size < 4) continue;
        if ((bytes[0] & 0xF0) != 0x40) {
            if (size >= 20) control(bytes, size, &names[i]);
            continue;
        }
        uint32_t count = bytes[2] << 8 | bytes[3];
        if (row == NULL || row->channel != (bytes[0] << 8 | bytes[1]) || (int)count > size - 4) continue;
        add(bytes + 4, count, 0, 0, &row->up_stamp, &row->up_run, row->fd, row->heat >= HOT ? NULL : &row->peer);
        if (row->heat < HOT && ++row->heat == HOT) connect(row->fd, (struct sockaddr *)&row->peer, sizeof row->peer);
        row->up_packets++;
        row->up_bytes += count;
    }
}

static void from_peer(int i, struct row *row) {
    if (names[i].sin_port != row->peer.sin_port || names[i].sin_addr.s_addr != row->peer.sin_addr.s_addr) return;
    int length = in[i].msg_len, segment = joined_size(&in[i]);
    for (int offset = 0; offset < length; offset += segment) {
        uint32_t size = length - offset < segment ? length - offset : segment;
        uint32_t head = htonl((uint32_t)row->channel << 16 | size);
        add(arena + (size_t)i * STRIDE + offset, size, 1, head, &row->down_stamp, &row->down_run, listener,
            &row->client);
        row->down_packets++;
        row->down_bytes += size;
    }
}

static void settle(void) {
    flush();
    arena_used = 0;
}

static void read_listener(void) {
    settle();
    for (int round = 0; round < 4; round++) {
        int count = receive(listener, 0);
        for (int i = 0; i < count; i++) from_client(i);
        flush();
        if (count < DEPTH) return;
    }
}

static void read_relay(struct row *row) {
    if (DEPTH - arena_used < 16) settle();
    int first = arena_used, count = receive(row->fd, first);
    if (count <= 0) return;
    arena_used += count;
    for (int i = first; i < arena_used; i++) from_peer(i, row);
}

int main(int count, char **words) {
    if (count != 2) return 64;
    arena = aligned_alloc(4096, ((size_t)DEPTH * STRIDE + 4095) & ~4095ul);
    for (int i = 0; i < DEPTH; i++) {
        in_vectors[i] = (struct iovec){arena + (size_t)i * STRIDE, BUFFER};
        in[i].msg_hdr = (struct msghdr){
            .msg_name = &names[i], .msg_iov = &in_vectors[i], .msg_iovlen = 1, .msg_control = in_controls[i]};
    }
    for (int i = 0; i < RUNS; i++) {
        struct cmsghdr *header = (struct cmsghdr *)out_controls[i];
        header->cmsg_level = IPPROTO_UDP;
        header->cmsg_type = UDP_SEGMENT;
        header->cmsg_len = CMSG_LEN(2);
    }
    poller = epoll_create1(0);
    listener = open_socket(atoi(words[1]), 8 << 20);
    watch(listener, 0);
    for (;;) {
        struct epoll_event ready[256];
        int found = epoll_wait(poller, ready, 256, -1);
        for (int i = 0; i < found; i++) {
            if (ready[i].data.u64 == 0) read_listener();
            else read_relay(&rows[ready[i].data.u64 - 1]);
        }
        settle();
    }
}
