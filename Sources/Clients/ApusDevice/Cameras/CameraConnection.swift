import ApusCore
import ApusTLS
import Glibc
import NIOCore

/// The TCP connection to a camera, with TLS for `rtsps://`.
///
/// A camera's certificate is its own, so TLS protects from those who listen, and not from those who answer in its
/// place.
///
/// Concurrency model: created, used and released on one thread. Calls block in slices, so that a stop request is
/// noticed within ``slice``.
final class CameraConnection {
    private let socket: Int32
    private var tls: TLSSession?
    private let name: String
    private let isStopped: () -> Bool
    private var received = [UInt8](repeating: 0, count: 64 << 10)

    /// The longest wait between two checks of the stop request.
    static let slice = Duration.milliseconds(50)

    /// Connects, and completes the handshake of TLS.
    ///
    /// - Throws: 10026 if the camera cannot be reached until the deadline, or the source was stopped.
    init(to address: CameraAddress, until deadline: MonotonicTime, isStopped: @escaping () -> Bool) throws(ApusError) {
        (name, self.isStopped) = ("the camera at \(address.shown)", isStopped)
        socket = try Self.connect(to: address, until: deadline, name, isStopped)
        if address.isSecure { try startTLS(to: address.host, until: deadline) }
    }

    deinit { close(socket) }

    // MARK: - Connecting

    private static func connect(
        to address: CameraAddress, until deadline: MonotonicTime, _ name: String, _ isStopped: () -> Bool
    ) throws(ApusError) -> Int32 {
        var hints = addrinfo()
        hints.ai_socktype = Int32(SOCK_STREAM.rawValue)
        var list: UnsafeMutablePointer<addrinfo>?
        let result = getaddrinfo(address.host, String(address.port), &hints, &list)
        guard result == 0 else {
            throw ApusError(
                .mediaUnreadable, "\(name) cannot be reached: \(String(cString: gai_strerror(result)))")
        }
        defer { freeaddrinfo(list) }
        var (reason, next) = ("it has no address", list)
        while let entry = next {
            next = entry.pointee.ai_next
            let handle = Glibc.socket(
                entry.pointee.ai_family,
                entry.pointee.ai_socktype | Int32(SOCK_NONBLOCK.rawValue | SOCK_CLOEXEC.rawValue),
                entry.pointee.ai_protocol)
            guard handle >= 0 else { continue }
            var number: Int32 = 0
            if Glibc.connect(handle, entry.pointee.ai_addr, entry.pointee.ai_addrlen) != 0 {
                number = errno
                if number == EINPROGRESS {
                    number = wait(handle, Int16(POLLOUT), until: deadline, isStopped) ? pending(handle) : ETIMEDOUT
                }
            }
            if number == 0 {
                var one: Int32 = 1
                setsockopt(handle, Int32(IPPROTO_TCP), TCP_NODELAY, &one, socklen_t(MemoryLayout<Int32>.size))
                return handle
            }
            close(handle)
            reason = String(cString: strerror(number))
        }
        throw ApusError(.mediaUnreadable, "\(name) cannot be reached: \(reason)")
    }

    /// The error of a connect that has ended.
    private static func pending(_ handle: Int32) -> Int32 {
        var number: Int32 = 0
        var count = socklen_t(MemoryLayout<Int32>.size)
        guard getsockopt(handle, SOL_SOCKET, SO_ERROR, &number, &count) == 0 else { return errno }
        return number
    }

    /// Waits for an event of a socket. Returns false at the deadline, and after a stop request.
    private static func wait(
        _ handle: Int32, _ events: Int16, until deadline: MonotonicTime, _ isStopped: () -> Bool
    ) -> Bool {
        while !isStopped() {
            let left = min(deadline - .now(), slice)
            var entry = pollfd(fd: handle, events: events, revents: 0)
            if poll(&entry, 1, Int32(max(left.milliseconds, 0))) > 0 { return true }
            if MonotonicTime.now() >= deadline { return false }
        }
        return false
    }

    private func startTLS(to host: String, until deadline: MonotonicTime) throws(ApusError) {
        do {
            let context = try TLSClientContext(acceptingAnyCertificate: ())
            let isNumeric = host.utf8.contains(UInt8(ascii: ":")) || host.utf8.allSatisfy { $0 < 0x40 }
            tls = TLSSession(context, host: isNumeric ? nil : host, address: isNumeric ? host : nil, resumption: nil)
        } catch {
            throw ApusError(.mediaUnreadable, "\(name) cannot be reached with TLS: \(error)")
        }
        guard tls != nil else { throw ApusError(.mediaUnreadable, "\(name) has no valid name for TLS") }
        var isDone = shakeHands([])
        while isDone == false {
            try sendPending(until: deadline)
            guard let bytes = try readSocket(until: deadline), !bytes.isEmpty else {
                throw ApusError(.mediaUnreadable, "\(name) does not answer with TLS")
            }
            isDone = shakeHands(bytes)
        }
        try sendPending(until: deadline)
        guard isDone == true else {
            throw ApusError(.mediaUnreadable, "\(name) cannot be reached with TLS: \(TLSSession.reason())")
        }
    }

    /// Continues the handshake. Nil if it failed.
    private func shakeHands(_ bytes: ArraySlice<UInt8>) -> Bool? {
        // SAFETY: the session uses the bytes until it is fed with none.
        bytes.withUnsafeBytes { ciphertext in
            tls?.feed(ciphertext)
            defer { tls?.feed(UnsafeRawBufferPointer(start: nil, count: 0)) }
            return tls?.handshake() ?? nil
        }
    }

    // MARK: - Bytes

    /// Sends all of a text.
    ///
    /// - Throws: 10026 if the connection has ended, or the camera does not take it until the deadline.
    func send(_ text: String, until deadline: MonotonicTime) throws(ApusError) {
        guard tls != nil else { return try sendSocket(Array(text.utf8), until: deadline) }
        // SAFETY: the session copies the bytes.
        guard Array(text.utf8).withUnsafeBytes({ tls?.write($0) }) != nil else { throw ended() }
        try sendPending(until: deadline)
    }

    /// Waits for bytes.
    ///
    /// - Returns: the bytes; empty at the deadline and after a stop request; nil once the camera has ended the
    ///   connection.
    /// - Throws: 10026 if the connection failed.
    func receive(until deadline: MonotonicTime) throws(ApusError) -> ByteBuffer? {
        if tls?.hasMore == true, let content = try readTLS([]), content.readableBytes > 0 { return content }
        guard let bytes = try readSocket(until: deadline) else { return nil }
        guard tls != nil else { return ByteBuffer(bytes: bytes) }
        let content = try readTLS(bytes)
        if tls?.isWaiting == true { try sendPending(until: deadline) }
        return content
    }

    /// The content of received records; nil once the camera has ended it.
    private func readTLS(_ bytes: ArraySlice<UInt8>) throws(ApusError) -> ByteBuffer? {
        var content = ByteBuffer()
        var (hasEnded, hasFailed) = (false, false)
        // SAFETY: the session uses the bytes until it is fed with none, and writes no more than it is offered.
        bytes.withUnsafeBytes { ciphertext in
            tls?.feed(ciphertext)
            defer { tls?.feed(UnsafeRawBufferPointer(start: nil, count: 0)) }
            while true {
                var count = 0
                content.writeWithUnsafeMutableBytes(minimumWritableBytes: 16 << 10) { room in
                    switch tls?.read(into: room) {
                    case .bytes(let length): count = length
                    case .ended: hasEnded = true
                    case .failed, nil: hasFailed = true
                    case .wantsMore: break
                    }
                    return count
                }
                guard count > 0 else { return }
            }
        }
        if content.readableBytes > 0 { return content }
        if hasFailed { throw ended() }
        return hasEnded ? nil : content
    }

    private func sendPending(until deadline: MonotonicTime) throws(ApusError) {
        while let bytes = tls?.takePending() { try sendSocket(Array(bytes.readableBytesView), until: deadline) }
    }

    private func sendSocket(_ bytes: [UInt8], until deadline: MonotonicTime) throws(ApusError) {
        var rest = bytes[...]
        while !rest.isEmpty {
            // SAFETY: the pointer is used only inside the call.
            let count = rest.withUnsafeBytes { Glibc.send(socket, $0.baseAddress, $0.count, Int32(MSG_NOSIGNAL)) }
            if count > 0 {
                rest = rest.dropFirst(count)
            } else if errno == EAGAIN || errno == EINTR {
                guard Self.wait(socket, Int16(POLLOUT), until: deadline, isStopped) else {
                    throw ApusError(.mediaUnreadable, "\(name) does not read what it is sent")
                }
            } else {
                throw ended()
            }
        }
    }

    /// Bytes of the socket; empty at the deadline and after a stop request, nil at its end.
    private func readSocket(until deadline: MonotonicTime) throws(ApusError) -> ArraySlice<UInt8>? {
        while true {
            // SAFETY: the pointer is used only inside the call.
            let count = received.withUnsafeMutableBytes { recv(socket, $0.baseAddress, $0.count, 0) }
            if count > 0 { return received[..<count] }
            if count == 0 { return nil }
            guard errno == EAGAIN || errno == EINTR else { throw ended() }
            guard Self.wait(socket, Int16(POLLIN), until: deadline, isStopped) else { return [] }
        }
    }

    private func ended() -> ApusError {
        ApusError(.mediaUnreadable, "the connection to \(name) failed: \(String(cString: strerror(errno)))")
    }
}
