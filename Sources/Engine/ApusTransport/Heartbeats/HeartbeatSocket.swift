import ApusCore
import CApusNet
import NIOCore

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// The heartbeat thread's socket and wake-up descriptor.
///
/// It is a plain socket without a channel. A channel closes for good after some errors of a single datagram, and it
/// reads only a few datagrams between two timers. The heartbeat thread must read everything that has arrived before it
/// judges a peer.
///
/// Concurrency model: confined to the heartbeat thread, except for the descriptor of `wake`.
final class HeartbeatSocket {
    /// The kernel's receive buffer, in bytes. It holds some thousands of datagrams.
    private static let bufferByteCount = 1 << 20
    /// The size of the read buffer, in bytes. A longer datagram is truncated, and is then malformed.
    private static let byteCountMax = 1024

    private let poll: CInt
    private var descriptor: CInt = -1
    private let bytes = UnsafeMutableRawBufferPointer.allocate(byteCount: byteCountMax, alignment: 8)

    private static let wakeToken: UInt64 = 0
    private static let socketToken: UInt64 = 1

    /// - Parameter wake: Made by `apus_wake_open`. The caller closes it.
    init(wake: CInt) {
        poll = apus_poll_open()
        if poll >= 0 { _ = apus_poll_add(poll, wake, UInt32(APUS_READABLE), Self.wakeToken) }
    }

    deinit {
        close()
        if poll >= 0 { apus_close(poll) }
        bytes.deallocate()
    }

    var isOpen: Bool { descriptor >= 0 }

    /// Opens a socket at an address.
    ///
    /// - Returns: 0, or the error number.
    func open(at address: SocketAddress) -> Int32 {
        close()
        guard poll >= 0 else { return -poll }
        let made: CInt = address.withSockAddr { pointer, length in
            apus_heartbeat_open(pointer, socklen_t(length), CInt(Self.bufferByteCount))
        }
        guard made >= 0 else { return -made }
        let added = apus_poll_add(poll, made, UInt32(APUS_READABLE), Self.socketToken)
        guard added >= 0 else {
            apus_close(made)
            return -added
        }
        descriptor = made
        return 0
    }

    func close() {
        guard descriptor >= 0 else { return }
        _ = apus_poll_remove(poll, descriptor)
        apus_close(descriptor)
        descriptor = -1
    }

    /// The socket's port; 0 if it is closed.
    var port: Int {
        var address = sockaddr_storage()
        var length = socklen_t(MemoryLayout<sockaddr_storage>.size)
        // SAFETY: the storage is large enough for every address, and the call is passed its length.
        return withUnsafeMutablePointer(to: &address) { storage in
            storage.withMemoryRebound(to: sockaddr.self, capacity: 1) { address in
                guard apus_local_address(descriptor, address, &length) == 0 else { return 0 }
                // Both address families have the port at the same offset.
                return address.withMemoryRebound(to: sockaddr_in.self, capacity: 1) {
                    Int(UInt16(bigEndian: $0.pointee.sin_port))
                }
            }
        }
    }

    /// Datagrams that the kernel dropped because they were not read in time.
    var dropCount: UInt32 { descriptor >= 0 ? apus_datagram_drops(descriptor) : 0 }

    /// Waits for a datagram, a wake-up or the given time. Without a time it waits indefinitely.
    func wait(until time: MonotonicTime?) {
        var milliseconds: CInt = -1
        if let time {
            let remaining = max((time - .now()).nanoseconds, 0)
            milliseconds = CInt(clamping: (remaining + 999_999) / 1_000_000)
        }
        var ready = [apus_ready](repeating: apus_ready(), count: 2)
        _ = apus_poll_wait(poll, &ready, 2, milliseconds)
    }

    /// Reads one datagram. Returns its bytes, nil if there is none, or the error number.
    func receive() -> Result<ByteBuffer?, HeartbeatSocketError> {
        guard descriptor >= 0 else { return .success(nil) }
        let count = apus_read(descriptor, bytes.baseAddress, bytes.count)
        if count >= 0 { return .success(ByteBuffer(bytes: bytes[..<count])) }
        let number = Int32(-count)
        return number == EAGAIN || number == EINTR ? .success(nil) : .failure(HeartbeatSocketError(number: number))
    }

    /// Sends one datagram. Returns 0, or the error number.
    func send(_ datagram: ByteBuffer, to address: SocketAddress) -> Int32 {
        guard descriptor >= 0 else { return EBADF }
        let result = datagram.withUnsafeReadableBytes { bytes in
            address.withSockAddr { pointer, length in
                apus_send_to(descriptor, bytes.baseAddress, bytes.count, pointer, socklen_t(length))
            }
        }
        return result < 0 ? Int32(-result) : 0
    }
}

/// The system's error number of a failed read.
struct HeartbeatSocketError: Error {
    var number: Int32
}

extension SocketRepairStateMachine {
    /// True for errors that concern a single datagram and not the socket.
    package static func isPassing(_ number: Int32) -> Bool {
        switch number {
        case EPERM, EACCES, EAGAIN, EINTR, ENOBUFS, ENOMEM, ENETDOWN, ENETUNREACH, EHOSTDOWN, EHOSTUNREACH,
            EADDRNOTAVAIL, ECONNREFUSED, EMSGSIZE, EINVAL, EAFNOSUPPORT:
            true
        default: false
        }
    }
}
