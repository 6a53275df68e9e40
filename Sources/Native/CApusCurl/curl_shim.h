// libcurl for Swift, which cannot call functions with variable arguments: one function for each type of an option's
// value.
#pragma once

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

// Handles are distinct types.
#define CURL_STRICTER 1
#include <curl/curl.h>

// A function that takes bytes of an answer: returns `size * count`, another number to end the transfer, or
// CURL_WRITEFUNC_PAUSE.
typedef size_t (*apus_curl_receiver)(char *bytes, size_t size, size_t count, void *context);

// A function that fills a buffer of `size * count` bytes with what a request sends, and returns their number.
typedef size_t (*apus_curl_sender)(char *buffer, size_t size, size_t count, void *context);

static inline CURLcode apus_curl_set_number(CURL *easy, CURLoption option, long value) {
    return curl_easy_setopt(easy, option, value);
}

static inline CURLcode apus_curl_set_size(CURL *easy, CURLoption option, int64_t value) {
    return curl_easy_setopt(easy, option, (curl_off_t)value);
}

// libcurl copies the text. Null sets the option to its initial state.
static inline CURLcode apus_curl_set_text(CURL *easy, CURLoption option, const char *value) {
    return curl_easy_setopt(easy, option, value);
}

// The headers of the request. The list belongs to the caller, and is in use until the handle is released.
static inline CURLcode apus_curl_set_headers(CURL *easy, struct curl_slist *headers) {
    return curl_easy_setopt(easy, CURLOPT_HTTPHEADER, headers);
}

// Receives the lines of heads and trailers, one with each call.
static inline CURLcode apus_curl_set_header_receiver(CURL *easy, apus_curl_receiver receiver, void *context) {
    CURLcode code = curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, receiver);
    return code != CURLE_OK ? code : curl_easy_setopt(easy, CURLOPT_HEADERDATA, context);
}

// Receives the body of the answer.
static inline CURLcode apus_curl_set_body_receiver(CURL *easy, apus_curl_receiver receiver, void *context) {
    CURLcode code = curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, receiver);
    return code != CURLE_OK ? code : curl_easy_setopt(easy, CURLOPT_WRITEDATA, context);
}

// Sends the body of the request.
static inline CURLcode apus_curl_set_body_sender(CURL *easy, apus_curl_sender sender, void *context) {
    CURLcode code = curl_easy_setopt(easy, CURLOPT_READFUNCTION, sender);
    return code != CURLE_OK ? code : curl_easy_setopt(easy, CURLOPT_READDATA, context);
}

// Where libcurl writes a sentence about a failure: CURL_ERROR_SIZE bytes, which live as long as the handle.
static inline CURLcode apus_curl_set_reason(CURL *easy, char *reason) {
    return curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, reason);
}

// The system's error of the last connect that failed; 0 if there is none.
static inline long apus_curl_system_error(CURL *easy) {
    long number = 0;
    return curl_easy_getinfo(easy, CURLINFO_OS_ERRNO, &number) == CURLE_OK ? number : 0;
}

static inline CURLMcode apus_curl_multi_set_number(CURLM *multi, CURLMoption option, long value) {
    return curl_multi_setopt(multi, option, value);
}

// The next transfer that has ended, with its result; null if there is none.
static inline CURL *apus_curl_multi_ended(CURLM *multi, CURLcode *result) {
    int waiting = 0;
    CURLMsg *message;
    while ((message = curl_multi_info_read(multi, &waiting)) != NULL) {
        if (message->msg != CURLMSG_DONE) continue;
        *result = message->data.result;
        return message->easy_handle;
    }
    return NULL;
}

// Continues a transfer whose receiver returned `apus_curl_pause`. It may call the receiver.
static inline CURLcode apus_curl_continue(CURL *easy) { return curl_easy_pause(easy, CURLPAUSE_CONT); }
static const size_t apus_curl_pause = CURL_WRITEFUNC_PAUSE;

static inline curl_socket_t apus_curl_socket(void *context, curlsocktype purpose, struct curl_sockaddr *address) {
    (void)context;
    (void)purpose;
    return socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
}

// Programs that the process starts do not inherit the transfer's socket.
static inline CURLcode apus_curl_close_on_exec(CURL *easy) {
    return curl_easy_setopt(easy, CURLOPT_OPENSOCKETFUNCTION, apus_curl_socket);
}

// Says whether a transfer may connect to an address of 4 or 16 bytes.
typedef bool (*apus_curl_judge)(const uint8_t *bytes, size_t count, void *context);

struct apus_curl_guard {
    apus_curl_judge allows;
    void *context;
};

// As `apus_curl_socket`, for addresses that the guard allows. libcurl tries the next address of the host otherwise.
static inline curl_socket_t apus_curl_guarded_socket(
    void *context, curlsocktype purpose, struct curl_sockaddr *address) {
    const struct apus_curl_guard *guard = (const struct apus_curl_guard *)context;
    const uint8_t *bytes = NULL;
    size_t count = 0;
    if (address->family == AF_INET) {
        bytes = (const uint8_t *)&((const struct sockaddr_in *)&address->addr)->sin_addr;
        count = 4;
    } else if (address->family == AF_INET6) {
        bytes = (const uint8_t *)&((const struct sockaddr_in6 *)&address->addr)->sin6_addr;
        count = 16;
    }
    if (bytes == NULL || !guard->allows(bytes, count, guard->context)) return CURL_SOCKET_BAD;
    return apus_curl_socket(NULL, purpose, address);
}

// Sockets are opened for addresses that the guard allows. It must live as long as the handle.
static inline CURLcode apus_curl_set_guard(CURL *easy, struct apus_curl_guard *guard) {
    CURLcode code = curl_easy_setopt(easy, CURLOPT_OPENSOCKETFUNCTION, apus_curl_guarded_socket);
    return code != CURLE_OK ? code : curl_easy_setopt(easy, CURLOPT_OPENSOCKETDATA, guard);
}

static inline curl_socket_t apus_curl_no_socket(void *context, curlsocktype purpose, struct curl_sockaddr *address) {
    (void)context;
    (void)purpose;
    (void)address;
    return CURL_SOCKET_BAD;
}

// The transfer uses a connection that exists, or fails.
static inline CURLcode apus_curl_open_nothing(CURL *easy) {
    return curl_easy_setopt(easy, CURLOPT_OPENSOCKETFUNCTION, apus_curl_no_socket);
}

// Prepares libcurl for all threads of the process.
static inline CURLcode apus_curl_global_init(void) { return curl_global_init(CURL_GLOBAL_DEFAULT); }
