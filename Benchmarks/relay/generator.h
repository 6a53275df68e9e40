// Shared by the parts of the relay's load generator.
#pragma once
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <stdint.h>
#include <sys/socket.h>

void fail(const char *what);
uint64_t now_ns(void);

// Who the client is, where a server asks; pointers stay valid.
void turn_credentials(const char *name, const char *secret);

// Allocates a UDP relay over a connected socket and binds channel 0x4000 to the peer. Ends the process where
// the server refuses.
void turn_allocate(int client, int is_stream, const struct sockaddr_in *peer);
