import ApusCore
import ApusTraversal
import Testing

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// A client of TURN over UDP that does what no good one does: as often as the machine can, and with wrong credentials.
final class TurnAttacker {
    private let socket: CInt
    private let username: String
    private let password: String
    private var realm = ""
    private var nonce: String?
    private var number: UInt64 = 0

    /// - Parameter host: the address of 127.0.0.0/8 that it comes from.
    init(port: Int, from host: UInt32, username: String, password: String) {
        (self.username, self.password) = (username, password)
        socket = Glibc.socket(AF_INET, CInt(SOCK_DGRAM.rawValue) | CInt(SOCK_CLOEXEC.rawValue), 0)
        var limit = timeval(tv_sec: 0, tv_usec: 500_000)
        setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, socklen_t(MemoryLayout<timeval>.size))
        Self.with(host, 0) { [socket] in _ = bind(socket, $0, $1) }
        Self.with(0x7f00_0001, port) { [socket] in _ = connect(socket, $0, $1) }
    }

    deinit { close(socket) }

    private static func with(_ host: UInt32, _ port: Int, _ body: (UnsafePointer<sockaddr>, socklen_t) -> Void) {
        var address = sockaddr_in()
        address.sin_family = sa_family_t(AF_INET)
        address.sin_port = in_port_t(port).bigEndian
        address.sin_addr.s_addr = host.bigEndian
        withUnsafePointer(to: &address) { pointer in
            pointer.withMemoryRebound(to: sockaddr.self, capacity: 1) {
                body($0, socklen_t(MemoryLayout<sockaddr_in>.size))
            }
        }
    }

    func send(_ bytes: [UInt8]) { _ = Glibc.send(socket, bytes, bytes.count, CInt(MSG_DONTWAIT)) }

    /// The next answer; nil where none comes in half a second.
    func receive() -> StunMessage? {
        var bytes = [UInt8](repeating: 0, count: 2_048)
        let count = recv(socket, &bytes, bytes.count, 0)
        return count > 0 ? try? StunMessage(Array(bytes.prefix(count))) : nil
    }

    func request(_ method: StunMethod, _ fill: (inout StunWriter) -> Void) -> [UInt8] {
        number += 1
        var writer = StunWriter(StunMessageType(.request, method), TransactionID(high: 7, low: number))
        fill(&writer)
        if let nonce {
            writer.add(.username, text: username)
            writer.add(.realm, text: realm)
            writer.add(.nonce, text: nonce)
            writer.addIntegrity(.sha1, key: StunKey(username: username, realm: realm, password: password))
        }
        return writer.bytes
    }

    func allocateRequest() -> [UInt8] { request(.allocate) { $0.add(requestedTransport: 17) } }

    /// Asks for a nonce; false where there is no answer.
    func challenge() -> Bool {
        nonce = nil
        send(allocateRequest())
        guard let answer = receive(), let fresh = try? answer.text(.nonce), let realm = try? answer.text(.realm) else {
            return false
        }
        (nonce, self.realm) = (fresh, realm)
        return true
    }

    /// Allocates and ends the allocation at once; false where either is refused or not answered.
    func churn() -> Bool {
        send(allocateRequest())
        guard let answer = receive(), answer.kind == .success else { return false }
        send(request(.refresh) { $0.add(.lifetime, number: UInt32(0)) })
        return receive()?.kind == .success
    }
}
