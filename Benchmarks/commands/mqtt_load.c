// Request and response over MQTT 5 with libmosquitto: the load of `scripts/bench commands` for mosquitto.
//
//     mqtt_load HOST PORT CA DEVICES APPS RATE CONCURRENCY SECONDS
//
// Each device subscribes to c/NUMBER and answers at the response topic, with the correlation data. Each app subscribes
// to r/NUMBER. All sessions are persistent, all messages QoS 1, all connections TLS. With a RATE the requests are sent at
// fixed times, and a time counts from when its request was due. With a RATE of 0, CONCURRENCY requests are in progress
// all the time. Prints: answered, failed, seconds, p50 and p99 in microseconds, and the CPU seconds of this process.
#include <errno.h>
#include <mosquitto.h>
#include <mqtt_protocol.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define REQUESTS_MAX 2000000

struct client {
    struct mosquitto *mosq;
    int number;
    int is_device;
};

static struct client *apps;
static int app_count, device_count;
static _Atomic int ready;
static uint64_t *due;
static uint64_t *took;
static _Atomic uint32_t next_request, answered, failed;
static _Atomic int is_over;
static int concurrency;
static char text[256];

static uint64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static void send_request(uint64_t at) {
    uint32_t number = atomic_fetch_add(&next_request, 1);
    if (number >= REQUESTS_MAX) return;
    struct client *app = &apps[number % app_count];
    char topic[32], response[32];
    snprintf(topic, sizeof topic, "c/%u", number % device_count);
    snprintf(response, sizeof response, "r/%d", app->number);
    due[number] = at;
    mosquitto_property *properties = NULL;
    mosquitto_property_add_string(&properties, MQTT_PROP_RESPONSE_TOPIC, response);
    mosquitto_property_add_binary(&properties, MQTT_PROP_CORRELATION_DATA, &number, sizeof number);
    int length = snprintf(text, sizeof text, "{\"ctlVal\":%u}", number);
    if (mosquitto_publish_v5(app->mosq, NULL, topic, length, text, 1, false, properties) != MOSQ_ERR_SUCCESS)
        atomic_fetch_add(&failed, 1);
    mosquitto_property_free_all(&properties);
}

static void on_message(struct mosquitto *mosq, void *context, const struct mosquitto_message *message,
                       const mosquitto_property *properties) {
    (void)message;
    struct client *client = context;
    if (client->is_device) {
        char *topic = NULL;
        void *data = NULL;
        uint16_t length = 0;
        mosquitto_property_read_string(properties, MQTT_PROP_RESPONSE_TOPIC, &topic, false);
        mosquitto_property_read_binary(properties, MQTT_PROP_CORRELATION_DATA, &data, &length, false);
        if (topic != NULL && data != NULL) {
            mosquitto_property *answer = NULL;
            mosquitto_property_add_binary(&answer, MQTT_PROP_CORRELATION_DATA, data, length);
            mosquitto_publish_v5(mosq, NULL, topic, 11, "{\"done\":true}", 1, false, answer);
            mosquitto_property_free_all(&answer);
        }
        free(topic);
        free(data);
        return;
    }
    uint32_t *number = NULL;
    uint16_t length = 0;
    mosquitto_property_read_binary(properties, MQTT_PROP_CORRELATION_DATA, (void **)&number, &length, false);
    if (number != NULL && length == sizeof *number && *number < REQUESTS_MAX && took[*number] == 0) {
        took[*number] = now_ns() - due[*number];
        atomic_fetch_add(&answered, 1);
        if (concurrency > 0 && !atomic_load(&is_over)) send_request(now_ns());
    }
    free(number);
}

static void on_connect(struct mosquitto *mosq, void *context, int code, int flags,
                       const mosquitto_property *properties) {
    (void)flags;
    (void)properties;
    struct client *client = context;
    if (code != 0) return;
    char topic[32];
    snprintf(topic, sizeof topic, client->is_device ? "c/%d" : "r/%d", client->number);
    mosquitto_subscribe(mosq, NULL, topic, 1);
}

static void on_subscribe(struct mosquitto *mosq, void *context, int id, int count, const int *granted) {
    (void)mosq;
    (void)context;
    (void)id;
    (void)count;
    (void)granted;
    atomic_fetch_add(&ready, 1);
}

static int start(struct client *client, const char *host, int port, const char *authority) {
    char name[32];
    snprintf(name, sizeof name, client->is_device ? "device-%d" : "app-%d", client->number);
    client->mosq = mosquitto_new(name, false, client);
    if (client->mosq == NULL) return -1;
    mosquitto_int_option(client->mosq, MOSQ_OPT_PROTOCOL_VERSION, MQTT_PROTOCOL_V5);
    mosquitto_int_option(client->mosq, MOSQ_OPT_TCP_NODELAY, 1);
    mosquitto_tls_set(client->mosq, authority, NULL, NULL, NULL, NULL);
    mosquitto_connect_v5_callback_set(client->mosq, on_connect);
    mosquitto_subscribe_callback_set(client->mosq, on_subscribe);
    mosquitto_message_v5_callback_set(client->mosq, on_message);
    mosquitto_property *properties = NULL;
    mosquitto_property_add_int32(&properties, MQTT_PROP_SESSION_EXPIRY_INTERVAL, 3600);
    int code = mosquitto_connect_bind_v5(client->mosq, host, port, 60, NULL, properties);
    mosquitto_property_free_all(&properties);
    if (code != MOSQ_ERR_SUCCESS) {
        fprintf(stderr, "connect: %s, %s\n", mosquitto_strerror(code), strerror(errno));
        return -1;
    }
    return mosquitto_loop_start(client->mosq) == MOSQ_ERR_SUCCESS ? 0 : -1;
}

static int compare(const void *left, const void *right) {
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return a < b ? -1 : a > b;
}

int main(int argc, char **argv) {
    if (argc != 9) return 64;
    device_count = atoi(argv[4]);
    app_count = atoi(argv[5]);
    double rate = atof(argv[6]);
    concurrency = rate > 0 ? 0 : atoi(argv[7]);
    double seconds = atof(argv[8]);
    due = calloc(REQUESTS_MAX, sizeof *due);
    took = calloc(REQUESTS_MAX, sizeof *took);
    struct client *devices = calloc((size_t)device_count, sizeof *devices);
    apps = calloc((size_t)app_count, sizeof *apps);
    if (due == NULL || took == NULL || devices == NULL || apps == NULL) return 1;
    mosquitto_lib_init();
    for (int i = 0; i < device_count; i++) {
        devices[i] = (struct client){.number = i, .is_device = 1};
        if (start(&devices[i], argv[1], atoi(argv[2]), argv[3]) != 0) return 1;
    }
    for (int i = 0; i < app_count; i++) {
        apps[i] = (struct client){.number = i};
        if (start(&apps[i], argv[1], atoi(argv[2]), argv[3]) != 0) return 1;
    }
    for (int i = 0; i < 3000 && atomic_load(&ready) < device_count + app_count; i++) usleep(10000);
    if (atomic_load(&ready) < device_count + app_count) {
        fprintf(stderr, "only %d clients are ready\n", atomic_load(&ready));
        return 1;
    }
    struct rusage before, after;
    getrusage(RUSAGE_SELF, &before);
    uint64_t begin = now_ns(), end = begin + (uint64_t)(seconds * 1e9);
    if (rate > 0) {
        uint64_t step = (uint64_t)(1e9 / rate), at = begin;
        while (at < end) {
            uint64_t now = now_ns();
            if (at > now) {
                struct timespec pause = {.tv_nsec = (long)(at - now)};
                nanosleep(&pause, NULL);
            }
            send_request(at);
            at += step;
        }
    } else {
        for (int i = 0; i < concurrency; i++) send_request(now_ns());
        while (now_ns() < end) usleep(1000);
    }
    uint32_t within = atomic_load(&answered);
    double measured = (double)(now_ns() - begin) / 1e9;
    atomic_store(&is_over, 1);
    for (int i = 0; i < 300 && atomic_load(&answered) + atomic_load(&failed) < atomic_load(&next_request); i++)
        usleep(10000);
    getrusage(RUSAGE_SELF, &after);
    uint32_t sent = atomic_load(&next_request), count = 0;
    for (uint32_t i = 0; i < sent && i < REQUESTS_MAX; i++)
        if (took[i] != 0) took[count++] = took[i];
    qsort(took, count, sizeof *took, compare);
    double cpu = (double)(after.ru_utime.tv_sec - before.ru_utime.tv_sec) +
                 (double)(after.ru_stime.tv_sec - before.ru_stime.tv_sec) +
                 (double)(after.ru_utime.tv_usec - before.ru_utime.tv_usec) / 1e6 +
                 (double)(after.ru_stime.tv_usec - before.ru_stime.tv_usec) / 1e6;
    printf("%u %u %.3f %.1f %.1f %.2f\n", rate > 0 ? count : within, sent - count, measured,
           count ? (double)took[count / 2] / 1000 : 0, count ? (double)took[count * 99ull / 100] / 1000 : 0, cpu);
    fflush(stdout);
    // The threads of 200 clients need not be joined.
    _exit(0);
}
