#define _GNU_SOURCE
#include "CApusNamespaces.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <netinet/in.h>
#include <sched.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

int apus_namespace_enter(const char *path) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -errno;
    int result = setns(fd, CLONE_NEWNET) < 0 ? -errno : 0;
    close(fd);
    return result;
}

int apus_tunnel_open(const char *name) {
    int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return -errno;
    // Without offloads, the kernel completes checksums and splits segments before a packet is read.
    struct ifreq request = {.ifr_flags = IFF_TUN | IFF_NO_PI};
    strncpy(request.ifr_name, name, sizeof request.ifr_name - 1);
    if (ioctl(fd, TUNSETIFF, &request) == 0) return fd;
    int result = -errno;
    close(fd);
    return result;
}

int apus_packet_open(const char *device) {
    // IPPROTO_RAW: the packets contain their headers (raw(7)).
    int fd = socket(AF_INET, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_RAW);
    if (fd < 0) return -errno;
    if (setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, device, (socklen_t)strlen(device) + 1) == 0) return fd;
    int result = -errno;
    close(fd);
    return result;
}
