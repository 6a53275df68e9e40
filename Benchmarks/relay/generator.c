// Loads a TURN server with allocations that have one peer, and counts and checks what arrives at the other end.
//     generator PORT PID TRANSPORT SHAPE DIRECTION ALLOCATIONS BURST SIZE SECONDS WINDOW RATE
// TRANSPORT, the clients', is udp or tcp. SHAPE is plain (each datagram by itself), joined (a burst in one UDP_SEGMENT
// message) or paired (plain, and the peer is a client of the server too: packets go from relay to relay). DIRECTION is
// up (from the clients to the peer) or down (from the peer to the clients). WINDOW bounds packets that are under way,
// RATE packets per second (0: as fast as the window allows). One line of key=value pairs goes to standard output.
//
// Allocations use long-term credentials (RFC 8489 §9.2) where the server asks for them: TURN_USER and
// TURN_PASSWORD of the environment.
#include "generator.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#define BATCH 64
#define BUFFER 65536
#define HEAD 24
#define CHANNEL 0x4000

static struct {
    int port, pid, tcp, joined, paired, down, allocations, burst, size;
    double seconds;
    long window, rate;
} load;

// One end of an allocation, and where its peers see it.
struct client {
    int fd;
    struct sockaddr_in relayed;
    // The beginning of a frame whose end has not come, of a client over TCP.
    unsigned char kept[2048];
    int kept_count;
};

static struct client *clients;
static int peer;
// Watches the clients, in direction down.
static int poller;
static unsigned char *pattern;
static unsigned char *outgoing;
// Bytes of ChannelData's header in what is sent.
static int head;
static uint64_t next_number;
static long under_way, received, bad, sent, given_up;
static uint64_t last_arrival;
static uint32_t delays[65536];
static long delay_count;

void fail(const char *what) {
    fprintf(stderr, "generator: %s: %s\n", what, strerror(errno));
    exit(1);
}

uint64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + time.tv_nsec;
}

// CPU seconds of all threads of the server.
static double server_cpu(void) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task/*/schedstat", load.pid);
    glob_t found;
    double total = 0;
    if (glob(path, 0, NULL, &found) != 0) return 0;
    for (size_t i = 0; i < found.gl_pathc; i++) {
        FILE *file = fopen(found.gl_pathv[i], "r");
        unsigned long long run = 0;
        if (file == NULL) continue;
        if (fscanf(file, "%llu", &run) == 1) total += run / 1e9;
        fclose(file);
    }
    globfree(&found);
    return total;
}

static int loopback_socket(int type, int bytes) {
    int fd = socket(AF_INET, type | SOCK_CLOEXEC, 0);
    if (fd < 0) fail("socket");
    if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof bytes) < 0)
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
    return fd;
}

static void take_joined(int fd) {
    int one = 1;
    setsockopt(fd, IPPROTO_UDP, UDP_GRO, &one, sizeof one);
}

static void open_peer(void) {
    peer = loopback_socket(SOCK_DGRAM, 32 << 20);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (bind(peer, (struct sockaddr *)&address, sizeof address) < 0) fail("bind");
    take_joined(peer);
}

static void open_clients(void) {
    clients = calloc(load.allocations, sizeof *clients);
    poller = epoll_create1(EPOLL_CLOEXEC);
    struct sockaddr_in server = {
        .sin_family = AF_INET, .sin_port = htons(load.port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in address;
    socklen_t length = sizeof address;
    getsockname(peer, (struct sockaddr *)&address, &length);
    if (load.paired) {
        if (connect(peer, (struct sockaddr *)&server, sizeof server) < 0) fail("connect");
        address = turn_allocate(peer, 0);
    }
    for (int i = 0; i < load.allocations; i++) {
        int fd = loopback_socket(load.tcp ? SOCK_STREAM : SOCK_DGRAM, load.down ? 8 << 20 : 1 << 20);
        if (connect(fd, (struct sockaddr *)&server, sizeof server) < 0) fail("connect");
        clients[i].fd = fd;
        clients[i].relayed = turn_allocate(fd, load.tcp);
        turn_bind(fd, load.tcp, CHANNEL, &address);
        if (load.paired) turn_bind(peer, 0, CHANNEL + i, &clients[i].relayed);
        if (!load.down) continue;
        if (!load.tcp) take_joined(fd);
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = i};
        if (epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event) < 0) fail("epoll_ctl");
    }
}

static void check(const unsigned char *bytes, int count, uint64_t now) {
    uint64_t stamp;
    if (load.paired || load.down) {
        int number = get16(bytes), last = load.paired ? CHANNEL + load.allocations - 1 : CHANNEL;
        if (number < CHANNEL || number > last || (int)get16(bytes + 2) != count - 4) count = 0;
        bytes += 4, count -= 4;
    }
    memcpy(&stamp, bytes + 8, 8);
    if (count != load.size || memcmp(bytes, "APUSLOAD", 8) != 0 ||
        memcmp(bytes + HEAD, pattern + HEAD, load.size - HEAD) != 0) {
        bad++;
        return;
    }
    received++;
    under_way--;
    if (load.window == 1 || (received & 15) == 0) {
        uint64_t delay = (now - stamp) / 1000;
        delays[delay_count++ & 65535] = delay > UINT32_MAX ? UINT32_MAX : delay;
    }
}

// Takes datagrams that arrived. Returns the number of messages.
static int drain_datagrams(int fd) {
    static unsigned char buffers[BATCH][BUFFER + 448];
    static struct mmsghdr messages[BATCH];
    static struct iovec vectors[BATCH];
    static unsigned char controls[BATCH][64];
    for (int i = 0; i < BATCH; i++) {
        vectors[i] = (struct iovec){buffers[i], BUFFER};
        messages[i].msg_hdr = (struct msghdr){
            .msg_iov = &vectors[i], .msg_iovlen = 1, .msg_control = controls[i], .msg_controllen = 64};
    }
    int count = recvmmsg(fd, messages, BATCH, MSG_DONTWAIT, NULL);
    if (count <= 0) return 0;
    uint64_t now = now_ns();
    last_arrival = now;
    for (int i = 0; i < count; i++) {
        int length = messages[i].msg_len, size = length;
        struct cmsghdr *control = CMSG_FIRSTHDR(&messages[i].msg_hdr);
        if (control != NULL && control->cmsg_type == UDP_GRO) size = *(int *)CMSG_DATA(control);
        for (int offset = 0; offset < length; offset += size)
            check(buffers[i] + offset, length - offset < size ? length - offset : size, now);
    }
    return count;
}

// Takes frames that arrived at a client over TCP. Returns 1, or 0 where there is nothing.
static int drain_stream(struct client *client) {
    static unsigned char buffer[sizeof client->kept + 262144];
    memcpy(buffer, client->kept, client->kept_count);
    ssize_t count = recv(client->fd, buffer + client->kept_count, sizeof buffer - sizeof client->kept, MSG_DONTWAIT);
    if (count == 0) fail("the server closed a connection");
    if (count < 0) return 0;
    uint64_t now = now_ns();
    last_arrival = now;
    int length = client->kept_count + count, offset = 0, whole = 4 + load.size;
    for (; length - offset >= whole; offset += whole) check(buffer + offset, whole, now);
    client->kept_count = length - offset;
    memcpy(client->kept, buffer + offset, client->kept_count);
    return 1;
}

// Takes what arrived at the other end. Returns 0 where there is nothing.
static int drain(void) {
    if (!load.down) return drain_datagrams(peer);
    if (load.allocations == 1) return load.tcp ? drain_stream(clients) : drain_datagrams(clients->fd);
    struct epoll_event ready[BATCH];
    int count = epoll_wait(poller, ready, BATCH, 0);
    for (int i = 0; i < count; i++) {
        struct client *client = &clients[ready[i].data.u32];
        if (load.tcp) drain_stream(client);
        else drain_datagrams(client->fd);
    }
    return count > 0;
}

static void stamp(unsigned char *packet, uint64_t now) {
    memcpy(packet + head + 8, &now, 8);
    memcpy(packet + head + 16, &next_number, 8);
    next_number++;
}

static void prepare(void) {
    pattern = malloc(load.size);
    for (int i = 0; i < load.size; i++) pattern[i] = (unsigned char)(i * 167 + 13);
    memcpy(pattern, "APUSLOAD", 8);
    head = load.down ? 0 : 4;
    int whole = head + load.size;
    outgoing = malloc((size_t)whole * load.burst);
    for (int i = 0; i < load.burst; i++) {
        unsigned char *packet = outgoing + (size_t)i * whole;
        if (head > 0) put16(packet, CHANNEL), put16(packet + 2, load.size);
        memcpy(packet + head, pattern, load.size);
    }
}

// Sends one burst of a client, or of the peer to it. Returns the packets that the kernel took.
static int send_burst(struct client *client) {
    static struct mmsghdr messages[BATCH];
    static struct iovec vectors[BATCH];
    int whole = head + load.size;
    uint64_t now = now_ns();
    for (int i = 0; i < load.burst; i++) stamp(outgoing + (size_t)i * whole, now);
    if (load.tcp && !load.down) {
        size_t length = (size_t)whole * load.burst, done = 0;
        while (done < length) {
            ssize_t count = send(client->fd, outgoing + done, length - done, MSG_DONTWAIT | MSG_NOSIGNAL);
            if (count > 0) done += count;
            else if (errno != EAGAIN) fail("send");
            else if (done == 0) return 0;
            else drain();
        }
        return load.burst;
    }
    int fd = load.down ? peer : client->fd;
    void *name = load.down ? &client->relayed : NULL;
    socklen_t name_length = load.down ? sizeof client->relayed : 0;
    if (load.joined) {
        struct iovec vector = {outgoing, (size_t)whole * load.burst};
        unsigned char control[CMSG_SPACE(sizeof(uint16_t))] = {0};
        struct msghdr message = {
            .msg_name = name, .msg_namelen = name_length, .msg_iov = &vector, .msg_iovlen = 1,
            .msg_control = control, .msg_controllen = sizeof control};
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = IPPROTO_UDP;
        header->cmsg_type = UDP_SEGMENT;
        header->cmsg_len = CMSG_LEN(sizeof(uint16_t));
        uint16_t size = whole;
        memcpy(CMSG_DATA(header), &size, sizeof size);
        return sendmsg(fd, &message, MSG_DONTWAIT) < 0 ? 0 : load.burst;
    }
    for (int i = 0; i < load.burst; i++) {
        vectors[i] = (struct iovec){outgoing + (size_t)i * whole, whole};
        messages[i].msg_hdr = (struct msghdr){
            .msg_name = name, .msg_namelen = name_length, .msg_iov = &vectors[i], .msg_iovlen = 1};
    }
    int count = sendmmsg(fd, messages, load.burst, MSG_DONTWAIT);
    return count < 0 ? 0 : count;
}

static void run(double seconds) {
    uint64_t start = now_ns(), end = start + (uint64_t)(seconds * 1e9);
    long begun = sent;
    int client = 0;
    last_arrival = start;
    for (uint64_t now = start; now < end; now = now_ns()) {
        int room = load.rate > 0
            ? sent - begun < (long)((now - start) / 1e9 * load.rate)
            : under_way + load.burst <= load.window;
        if (room) {
            int count = send_burst(&clients[client]);
            sent += count;
            under_way += count;
            client = client + 1 == load.allocations ? 0 : client + 1;
            if (load.rate > 0) drain();
            else if (client % 4 == 0 || load.allocations == 1) drain();
        } else if (drain() == 0 && load.rate == 0 && now > last_arrival + 20000000) {
            // Nothing came for 20 ms: what is missing is lost, and the window opens again.
            given_up += under_way;
            under_way = 0;
            last_arrival = now;
        }
    }
}

static int by_size(const void *a, const void *b) {
    uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;
    return left < right ? -1 : left > right;
}

int main(int count, char **words) {
    if (count != 12) {
        fprintf(
            stderr, "usage: generator PORT PID TRANSPORT SHAPE DIRECTION ALLOCATIONS BURST SIZE SECONDS WINDOW RATE\n");
        return 64;
    }
    load.port = atoi(words[1]), load.pid = atoi(words[2]);
    load.tcp = strcmp(words[3], "tcp") == 0;
    load.joined = strcmp(words[4], "joined") == 0, load.paired = strcmp(words[4], "paired") == 0;
    load.down = strcmp(words[5], "down") == 0;
    load.allocations = atoi(words[6]), load.burst = atoi(words[7]), load.size = atoi(words[8]);
    load.seconds = atof(words[9]), load.window = atol(words[10]), load.rate = atol(words[11]);
    if (load.allocations < 1 || load.burst < 1 || load.burst > BATCH || load.size < 32 || load.size > 1400 ||
        load.allocations > 4096 || (load.tcp && load.size % 4 != 0) || (load.paired && load.down)) {
        fprintf(stderr, "generator: a parameter is out of range\n");
        return 64;
    }
    turn_credentials(getenv("TURN_USER"), getenv("TURN_PASSWORD"));
    open_peer();
    open_clients();
    prepare();
    run(0.7);
    usleep(50000);
    while (drain() > 0) {}
    under_way = received = bad = sent = given_up = delay_count = 0;
    double cpu = server_cpu();
    uint64_t start = now_ns();
    run(load.seconds);
    double elapsed = (now_ns() - start) / 1e9;
    uint64_t quiet = now_ns() + 100000000;
    while (now_ns() < quiet)
        if (drain() > 0) quiet = now_ns() + 100000000;
    cpu = server_cpu() - cpu;
    long samples = delay_count < 65536 ? delay_count : 65536;
    qsort(delays, samples, sizeof *delays, by_size);
    printf(
        "cpu_s_per_mpkt=%.4f pps=%.0f sent=%ld received=%ld lost_share=%.6f bad=%ld busy=%.3f delay_p50_us=%u "
        "delay_p99_us=%u delay_p999_us=%u\n",
        received ? cpu / received * 1e6 : 0, received / elapsed, sent, received,
        sent ? (double)(sent - received) / sent : 0, bad, cpu / elapsed, samples ? delays[samples / 2] : 0,
        samples ? delays[samples * 99 / 100] : 0, samples ? delays[samples * 999 / 1000] : 0);
    return 0;
}
