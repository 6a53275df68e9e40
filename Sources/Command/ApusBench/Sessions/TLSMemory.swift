import ApusCore
import ApusTLS
import CApusMemory
import NIOCore

/// The memory of one established TLS connection of a node, measured in this process with the node's own TLS library and
/// certificate.
enum TLSMemory {
    /// A server's side, so that an array can hold it.
    private final class Server {
        var session: TLSSession
        init(_ session: consuming TLSSession) { self.session = session }
    }

    /// - Parameter count: the number of connections that are open at once.
    /// - Returns: bytes per connection; nil if the C library does not tell what is allocated.
    /// - Throws: 10022 if a file cannot be used, 10018 if a handshake fails.
    static func byteCount(
        certificateFile: String, keyFile: String, authorityFile: String, count: Int
    ) throws(ApusError) -> Int? {
        let tickets = TLSTicketKeys(clusterKey: [UInt8](repeating: 7, count: 32), lifetime: .seconds(3600))
        let server = try TLSServerContext(certificateFile: certificateFile, keyFile: keyFile, tickets: tickets)
        let client = try TLSClientContext(authorityFile: authorityFile)
        // What the library allocates once.
        var sides = [try connect(server, client)]
        let before = apus_allocated_bytes()
        guard before > 0 else { return nil }
        for _ in 0..<count { sides.append(try connect(server, client)) }
        let after = apus_allocated_bytes()
        withExtendedLifetime(sides) {}
        return (Int(after) - Int(before)) / count
    }

    /// A connection that has exchanged the messages of a sign-in. Only the server's side is kept.
    private static func connect(
        _ server: TLSServerContext, _ client: TLSClientContext
    ) throws(ApusError) -> Server {
        let resumption = TLSResumption()
        guard let accepted = TLSSession(server, socket: -1),
            var connecting = TLSSession(client, host: nil, address: "127.0.0.1", resumption: resumption)
        else { throw ApusError(.internalFailure, "TLS cannot be started") }
        let side = Server(accepted)
        side.session.setDirect(false)
        var (isServerDone, isClientDone) = (false, false)
        for _ in 0..<8 where !isServerDone || !isClientDone {
            if !isClientDone { isClientDone = connecting.handshake() ?? false }
            if let bytes = connecting.takePending() { isServerDone = advance(side, bytes) || isServerDone }
            if let bytes = side.session.takePending() { feed(&connecting, bytes, &isClientDone) }
        }
        guard isServerDone, isClientDone else { throw ApusError(.internalFailure, "a TLS handshake did not end") }
        let message = [UInt8](repeating: 1, count: 512)
        message.withUnsafeBytes { _ = connecting.write($0) }
        if let bytes = connecting.takePending() { read(side, bytes) }
        message.withUnsafeBytes { _ = side.session.write($0) }
        _ = side.session.takePending()
        return side
    }

    private static func advance(_ side: Server, _ bytes: ByteBuffer) -> Bool {
        bytes.withUnsafeReadableBytes { ciphertext in
            side.session.feed(ciphertext)
            defer { side.session.feed(UnsafeRawBufferPointer(start: nil, count: 0)) }
            return side.session.handshake() ?? false
        }
    }

    private static func feed(_ connecting: inout TLSSession, _ bytes: ByteBuffer, _ isDone: inout Bool) {
        bytes.withUnsafeReadableBytes { ciphertext in
            connecting.feed(ciphertext)
            if !isDone { isDone = connecting.handshake() ?? false }
            connecting.feed(UnsafeRawBufferPointer(start: nil, count: 0))
        }
    }

    private static func read(_ side: Server, _ bytes: ByteBuffer) {
        var content = [UInt8](repeating: 0, count: 1_024)
        bytes.withUnsafeReadableBytes { ciphertext in
            side.session.feed(ciphertext)
            content.withUnsafeMutableBytes { _ = side.session.read(into: $0) }
            side.session.feed(UnsafeRawBufferPointer(start: nil, count: 0))
        }
    }
}
