// Network namespaces and devices of Linux. Every function that can fail returns -errno. The header includes no other,
// because Swift attributes the types of the system's headers to the module that includes them first.
#pragma once

// Moves the calling thread to the network namespace that a file names (setns(2)): 0 or -errno. Its sockets, and the
// processes that it starts, belong to that namespace.
int apus_namespace_enter(const char *path);
// A tun device of the thread's namespace: each read(2) returns an IP packet that was routed to it. Non-blocking. The
// device, and the routes to it, disappear when the descriptor is closed.
int apus_tunnel_open(const char *name);
// A socket that sends complete IPv4 packets through one device only, whatever the routes.
int apus_packet_open(const char *device);
