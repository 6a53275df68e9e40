// Makes very many allocations at a TURN server and ends them, while one flow runs with stamped packets.
//     allocations PORT PID ALLOCATIONS RATE SECONDS EXPIRY
// RATE is the flow's packets per second, SECONDS its time alone. With an EXPIRY, the shortest lifetime that the server
// gives, in seconds, all are made once more, refreshed with it, and left to end by themselves. Credentials are made from TURN_SECRET, 50 allocations
// for each user (TURN REST); clients are at 127.0.0.0/8, TURN_SOURCE_SIZE (200) to an address, and TURN_WINDOW (256) of
// them ask at once: 3,000 and 3,000 are a NAT behind which all come back after a restart. Each allocation is asked for
// twice, the first time without a credential, as any client does. One line of key=value pairs goes to standard output.
//
// Delays are from before the sending call to the kernel's receive stamp, so that this program's own work is not in them.
#include "generator.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define SAMPLES (1 << 20)
#define USER_SIZE 50

enum step { CHALLENGE, ALLOCATING, BINDING, ENDING, EXPIRING, LOOKING };

struct client {
    int fd, waiting;
    uint64_t asked_at;
    unsigned char nonce[128];
    int nonce_length;
};

struct user {
    char name[64];
    unsigned char key[16];
};

static int port, pid, count, rate, expiry, gone, window = 256, source_size = 200;
static struct client *clients;
static struct user *users;
static char realm[128];
static int poller, peer, flow;
static struct sockaddr_in peer_address;
static uint32_t *delays;
static long delay_count, flow_sent, flow_received;
static uint64_t flow_next;

void fail(const char *what) {
    fprintf(stderr, "allocations: %s: %s\n", what, strerror(errno));
    exit(1);
}

uint64_t now_ns(void) {
    struct timespec time;
    // The clock of the kernel's receive stamps.
    clock_gettime(CLOCK_REALTIME, &time);
    return (uint64_t)time.tv_sec * 1000000000u + time.tv_nsec;
}

static long resident_bytes(void) {
    char path[64];
    long pages = 0;
    snprintf(path, sizeof path, "/proc/%d/statm", pid);
    FILE *file = fopen(path, "r");
    if (file == NULL || fscanf(file, "%*d %ld", &pages) != 1) fail("statm");
    fclose(file);
    return pages * sysconf(_SC_PAGESIZE);
}

static void make_user(struct user *user, int number, const char *secret) {
    snprintf(user->name, sizeof user->name, "4000000000:u%d", number);
    unsigned char digest[EVP_MAX_MD_SIZE], password[64];
    unsigned length = 0;
    HMAC(EVP_sha1(), secret, strlen(secret), (unsigned char *)user->name, strlen(user->name), digest, &length);
    EVP_EncodeBlock(password, digest, length);
    char text[512];
    int size = snprintf(text, sizeof text, "%s:%s:%s", user->name, realm, password);
    EVP_Digest(text, size, user->key, NULL, EVP_md5(), NULL);
}

static int client_socket(uint32_t host) {
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct sockaddr_in source = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(host)};
    struct sockaddr_in server = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (fd < 0 || bind(fd, (struct sockaddr *)&source, sizeof source) < 0) fail("a client's socket");
    if (connect(fd, (struct sockaddr *)&server, sizeof server) < 0) fail("connect");
    return fd;
}

static void open_peer(void) {
    peer = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof peer_address;
    int one = 1;
    if (peer < 0 || bind(peer, (struct sockaddr *)&address, sizeof address) < 0) fail("bind");
    if (setsockopt(peer, SOL_SOCKET, SO_TIMESTAMPNS, &one, sizeof one) < 0) fail("SO_TIMESTAMPNS");
    getsockname(peer, (struct sockaddr *)&peer_address, &length);
}

// The running flow: sends what is due, and takes what came.
static void serve_flow(void) {
    unsigned char packet[204] = {0x40, 0, 0, 200};
    uint64_t now = now_ns();
    while (rate > 0 && now >= flow_next) {
        // A packet that this program is late with is sent now and counts from now.
        flow_next = (now > flow_next + 50000000 ? now : flow_next) + 1000000000u / rate;
        now = now_ns();
        memcpy(packet + 4, &now, 8);
        if (send(flow, packet, sizeof packet, 0) == sizeof packet) flow_sent++;
    }
    for (;;) {
        unsigned char control[128];
        struct iovec vector = {packet, sizeof packet};
        struct msghdr message = {
            .msg_iov = &vector, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
        if (recvmsg(peer, &message, MSG_DONTWAIT) != 200) return;
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        if (header == NULL || header->cmsg_type != SO_TIMESTAMPNS) fail("no receive stamp");
        struct timespec stamp;
        uint64_t sent_at;
        memcpy(&stamp, CMSG_DATA(header), sizeof stamp);
        memcpy(&sent_at, packet, 8);
        uint64_t at = (uint64_t)stamp.tv_sec * 1000000000u + stamp.tv_nsec;
        flow_received++;
        if (delay_count < SAMPLES) delays[delay_count++] = at > sent_at ? (at - sent_at) / 1000 : 0;
    }
}

static void ask(int index, enum step step) {
    struct client *client = &clients[index];
    struct user *user = &users[index / USER_SIZE];
    struct message message;
    turn_begin(&message, step == BINDING ? CHANNEL_BIND : step >= ENDING ? REFRESH : ALLOCATE);
    if (step == BINDING) {
        turn_attribute(&message, CHANNEL_NUMBER, "\x40\0\0\0", 4);
        unsigned char value[8] = {0, 1};
        put16(value + 2, ntohs(peer_address.sin_port) ^ 0x2112);
        uint32_t address = htonl(ntohl(peer_address.sin_addr.s_addr) ^ 0x2112A442u);
        memcpy(value + 4, &address, 4);
        turn_attribute(&message, PEER, value, 8);
    } else if (step >= ENDING) {
        unsigned char value[4] = {0};
        if (step == EXPIRING) put16(value + 2, expiry);
        turn_attribute(&message, LIFETIME, value, 4);
    } else {
        turn_attribute(&message, TRANSPORT, "\x11\0\0\0", 4);
    }
    if (step != CHALLENGE) {
        turn_attribute(&message, USERNAME, user->name, strlen(user->name));
        turn_attribute(&message, REALM, realm, strlen(realm));
        turn_attribute(&message, NONCE, client->nonce, client->nonce_length);
        turn_sign(&message, user->key);
    }
    client->waiting = 1;
    client->asked_at = now_ns();
    if (send(client->fd, message.bytes, message.length, 0) < 0 && errno != EAGAIN) fail("send");
}

// Takes an answer. Returns whether the client is done with the step.
static int answered(int index, enum step step) {
    struct client *client = &clients[index];
    struct message answer;
    answer.length = recv(client->fd, answer.bytes, sizeof answer.bytes, 0);
    if (answer.length < 20 || !client->waiting) return 0;
    int error = turn_error(&answer), length = 0;
    if (step == ALLOCATING && error == 401) {
        const unsigned char *nonce = turn_find(&answer, NONCE, &length);
        if (nonce == NULL || length > (int)sizeof client->nonce) fail("a nonce");
        memcpy(client->nonce, nonce, client->nonce_length = length);
        ask(index, ALLOCATING);
        return 0;
    }
    if (step == LOOKING && error == 437) {
        gone++;
        error = 0;
    }
    if (error != 0) {
        fprintf(stderr, "allocations: client %d has error %d in step %d\n", index, error, step);
        exit(1);
    }
    client->waiting = 0;
    return 1;
}

// Takes all clients through a step, `window` at a time, while the flow runs. Returns the seconds.
static double take_all(enum step step) {
    uint64_t start = now_ns(), looked = start;
    int next = 0, done = 0;
    while (done < count) {
        while (next < count && next - done < window) ask(next++, step == ALLOCATING ? CHALLENGE : step);
        struct epoll_event ready[32];
        int found = epoll_wait(poller, ready, 32, 0);
        for (int i = 0; i < found; i++) done += answered(ready[i].data.u32, step);
        serve_flow();
        uint64_t now = now_ns();
        if (now < looked + 100000000) continue;
        looked = now;
        for (int i = 0; i < next; i++)
            if (clients[i].waiting && now > clients[i].asked_at + 500000000)
                ask(i, step == ALLOCATING && clients[i].nonce_length == 0 ? CHALLENGE : step);
        if (now > start + 120000000000u) {
            errno = ETIMEDOUT;
            fail("a step");
        }
    }
    return (now_ns() - start) / 1e9;
}

static void run_flow(double seconds) {
    for (uint64_t end = now_ns() + (uint64_t)(seconds * 1e9); now_ns() < end;) serve_flow();
}

static int by_size(const void *a, const void *b) {
    uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;
    return left < right ? -1 : left > right;
}

static void begin_delays(void) { delay_count = flow_sent = flow_received = 0; }

static void tell_delays(const char *name) {
    run_flow(0.05);
    qsort(delays, delay_count, sizeof *delays, by_size);
    long n = delay_count;
    printf("%s_p50_us=%u %s_p99_us=%u %s_p999_us=%u %s_max_us=%u %s_packets=%ld %s_lost=%ld ", name,
        n ? delays[n / 2] : 0, name, n ? delays[n * 99 / 100] : 0, name, n ? delays[n * 999 / 1000] : 0, name,
        n ? delays[n - 1] : 0, name, n, name, flow_sent - flow_received > 1 ? flow_sent - flow_received : 0);
}

// All end by themselves within the time that it took to refresh them; the flow is looked at from the first to the last.
static void expire_all(void) {
    take_all(ALLOCATING);
    take_all(BINDING);
    uint64_t first = now_ns();
    double refreshed = take_all(EXPIRING);
    uint64_t last = now_ns();
    while (now_ns() < first + (uint64_t)expiry * 1000000000u) serve_flow();
    begin_delays();
    while (now_ns() < last + (uint64_t)expiry * 1000000000u + 300000000u) serve_flow();
    tell_delays("expiring");
    run_flow(3);
    take_all(LOOKING);
    printf("expiring_s=%.2f expired=%d ", refreshed, gone);
}

int main(int words, char **word) {
    const char *secret = getenv("TURN_SECRET");
    if (words != 7 || secret == NULL || getenv("TURN_REALM") == NULL) return 64;
    port = atoi(word[1]), pid = atoi(word[2]), count = atoi(word[3]), rate = atoi(word[4]);
    expiry = atoi(word[6]);
    if (getenv("TURN_WINDOW")) window = atoi(getenv("TURN_WINDOW"));
    if (getenv("TURN_SOURCE_SIZE")) source_size = atoi(getenv("TURN_SOURCE_SIZE"));
    if (window < 1 || source_size < 1) return 64;
    snprintf(realm, sizeof realm, "%s", getenv("TURN_REALM"));
    struct rlimit files = {count + 256, count + 256};
    if (setrlimit(RLIMIT_NOFILE, &files) < 0) fail("RLIMIT_NOFILE");
    delays = malloc(SAMPLES * sizeof *delays);
    clients = calloc(count, sizeof *clients);
    users = calloc(count / USER_SIZE + 1, sizeof *users);
    for (int i = 0; i <= count / USER_SIZE; i++) make_user(&users[i], i, secret);
    poller = epoll_create1(EPOLL_CLOEXEC);
    open_peer();
    for (int i = 0; i < count; i++) {
        clients[i].fd = client_socket(0x7F010001u + i / source_size);
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = i};
        if (epoll_ctl(poller, EPOLL_CTL_ADD, clients[i].fd, &event) < 0) fail("epoll_ctl");
    }
    flow = client_socket(INADDR_LOOPBACK);
    fcntl(flow, F_SETFL, 0);
    turn_credentials(getenv("TURN_USER"), getenv("TURN_PASSWORD"));
    turn_allocate(flow, 0);
    turn_bind(flow, 0, 0x4000, &peer_address);
    fcntl(flow, F_SETFL, O_NONBLOCK);
    double seconds = atof(word[5]);
    flow_next = now_ns();
    run_flow(0.5);
    begin_delays();
    run_flow(seconds);
    tell_delays("alone");
    long before = resident_bytes();
    begin_delays();
    double made = take_all(ALLOCATING);
    tell_delays("beginning");
    long allocated = resident_bytes();
    begin_delays();
    double bound = take_all(BINDING);
    tell_delays("binding");
    long channels = resident_bytes();
    begin_delays();
    run_flow(seconds);
    tell_delays("full");
    begin_delays();
    double ended = take_all(ENDING);
    tell_delays("ending");
    run_flow(3);
    long left = resident_bytes();
    if (expiry > 0) expire_all();
    printf("allocations=%d allocations_s=%.3f allocations_per_s=%.0f bindings_per_s=%.0f endings_per_s=%.0f "
        "bytes_per_allocation=%ld bytes_with_channel=%ld bytes_left=%ld\n",
        count, made, count / made, count / bound, count / ended, (allocated - before) / count,
        (channels - before) / count, (left - before) / count);
    return 0;
}
