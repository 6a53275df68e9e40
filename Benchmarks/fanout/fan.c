// The twin: the least that a TLS fan-out in C on OpenSSL does. One thread, one epoll, one SSL_write a
// viewer for each video frame, with the audio since the last one riding along.
//
//     fan PORT CERTIFICATE KEY
// Viewers connect to PORT with TLS 1.3, the publisher to PORT + 1 without; frames are u32 length, u8 kind, payload.
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum { VIEWERS_MAX = 4096, PENDING_MAX = 4 << 20, AUDIO = 2 };

struct viewer {
    int fd;
    SSL *ssl;
    int is_open;
    char *pending;  // what the socket did not take
    size_t pending_count;
};

static struct viewer *viewers[VIEWERS_MAX];
static int viewer_count, poller;
static unsigned long long skipped;

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static int listen_on(int port) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), one = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, 4096)) fail("listen");
    return fd;
}

static void watch(int fd, void *what, uint32_t events, int operation) {
    struct epoll_event event = {.events = events, .data.ptr = what};
    if (epoll_ctl(poller, operation, fd, &event)) fail("epoll_ctl");
}

static void drop(struct viewer *v) {
    for (int i = 0; i < viewer_count; i++)
        if (viewers[i] == v) viewers[i--] = viewers[--viewer_count];
    close(v->fd);
    SSL_free(v->ssl);
    free(v->pending);
    free(v);
}

static void keep(struct viewer *v, const char *bytes, size_t count) {
    if (v->pending_count + count > PENDING_MAX) {
        skipped++;
        return;
    }
    if (v->pending_count == 0) watch(v->fd, v, EPOLLIN | EPOLLOUT, EPOLL_CTL_MOD);
    v->pending = realloc(v->pending, v->pending_count + count);
    memcpy(v->pending + v->pending_count, bytes, count);
    v->pending_count += count;
}

static void write_to(struct viewer *v, const char *bytes, size_t count) {
    if (v->pending_count) {
        keep(v, bytes, count);
        return;
    }
    while (count > 0) {
        int n = SSL_write(v->ssl, bytes, (int)count);
        if (n <= 0) {
            keep(v, bytes, count);
            return;
        }
        bytes += n;
        count -= (size_t)n;
    }
}

static void serve(struct viewer *v, uint32_t events) {
    if (!v->is_open) {
        int result = SSL_accept(v->ssl);
        if (result == 1) {
            v->is_open = 1;
            viewers[viewer_count++] = v;
        } else if (SSL_get_error(v->ssl, result) != SSL_ERROR_WANT_READ) {
            drop(v);
        }
        return;
    }
    if (events & EPOLLOUT && v->pending_count) {
        char *bytes = v->pending;
        size_t count = v->pending_count;
        v->pending = NULL;
        v->pending_count = 0;
        watch(v->fd, v, EPOLLIN, EPOLL_CTL_MOD);
        write_to(v, bytes, count);
        free(bytes);
    }
    char scratch[4096];
    int n = SSL_read(v->ssl, scratch, sizeof scratch);
    if (n <= 0 && SSL_get_error(v->ssl, n) != SSL_ERROR_WANT_READ) drop(v);
}

// Frames of the publisher: audio waits, video sends it along.
static void publish(char *in, size_t *in_count) {
    static char out[1 << 20];
    static size_t out_count;
    size_t at = 0;
    while (*in_count - at >= 5) {
        uint32_t length;
        memcpy(&length, in + at, 4);
        size_t size = 5 + ntohl(length);
        if (*in_count - at < size) break;
        if (out_count + size > sizeof out) out_count = 0;
        memcpy(out + out_count, in + at, size);
        out_count += size;
        int is_audio = in[at + 4] == AUDIO;
        at += size;
        if (is_audio) continue;
        for (int i = 0; i < viewer_count; i++) write_to(viewers[i], out, out_count);
        out_count = 0;
    }
    memmove(in, in + at, *in_count - at);
    *in_count -= at;
}

static void accept_viewer(int listener, SSL_CTX *tls) {
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK), one = 1;
    if (fd < 0) return;
    if (viewer_count == VIEWERS_MAX) {
        close(fd);
        return;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    struct viewer *v = calloc(1, sizeof *v);
    v->fd = fd;
    v->ssl = SSL_new(tls);
    SSL_set_fd(v->ssl, fd);
    watch(fd, v, EPOLLIN, EPOLL_CTL_ADD);
}

int main(int argc, char **argv) {
    if (argc != 4) return 64;
    signal(SIGPIPE, SIG_IGN);
    SSL_CTX *tls = SSL_CTX_new(TLS_server_method());
    SSL_CTX_set_min_proto_version(tls, TLS1_3_VERSION);
    SSL_CTX_set_mode(tls, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
    if (SSL_CTX_use_certificate_chain_file(tls, argv[2]) != 1 || SSL_CTX_use_PrivateKey_file(tls, argv[3], SSL_FILETYPE_PEM) != 1)
        fail("certificate");
    int door = listen_on(atoi(argv[1])), source = listen_on(atoi(argv[1]) + 1), publisher = -1;
    poller = epoll_create1(0);
    watch(door, &door, EPOLLIN, EPOLL_CTL_ADD);
    watch(source, &source, EPOLLIN, EPOLL_CTL_ADD);
    static char in[1 << 20];
    size_t in_count = 0;
    puts("ready");
    fflush(stdout);
    for (;;) {
        struct epoll_event events[256];
        int n = epoll_wait(poller, events, 256, -1);
        for (int i = 0; i < n; i++) {
            void *what = events[i].data.ptr;
            ERR_clear_error();
            if (what == &door) {
                accept_viewer(door, tls);
            } else if (what == &source && publisher < 0) {
                publisher = accept4(source, NULL, NULL, SOCK_NONBLOCK);
                watch(publisher, &publisher, EPOLLIN, EPOLL_CTL_ADD);
            } else if (what == &publisher) {
                ssize_t got = read(publisher, in + in_count, sizeof in - in_count);
                if (got == 0) return 0;
                if (got > 0) in_count += (size_t)got;
                publish(in, &in_count);
            } else if (what != &source) {
                serve(what, events[i].events);
            }
        }
    }
}
