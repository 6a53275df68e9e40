package import ApusCore
package import ApusTraversal
import Glibc

/// Asks a STUN server for the public address of a private one (RFC 8489 §12.1), for a relay behind a NAT.
package enum ExternalLookup {
    /// The first wait for an answer. Each further one is twice as long (RFC 8489 §6.2.1).
    private static let firstWait = Duration.milliseconds(250)

    /// A server's answer.
    package struct Answer: Sendable {
        /// The address that the server sees.
        package let seen: TransportAddress
        /// True if the port is that of the socket. Behind a NAT that changes ports, relayed addresses cannot be
        /// reached.
        package let isPortKept: Bool
    }

    /// The address that the server sees, asked from a port that the system chooses.
    ///
    /// Blocks the thread until the answer or the time-out.
    ///
    /// - Parameter host: the address to ask from.
    /// - Throws: 10018 if no socket can be opened, 21002 if no answer comes in time.
    package static func ask(
        _ server: TransportAddress, from host: TransportAddress, timeout: Duration
    ) throws(ApusError) -> Answer {
        let opened = try RelaySocket.open(host.withPort(0), bufferBytes: 65_536)
        defer { RelaySocket.close(opened.socket) }
        var random = SystemRandomNumberGenerator()
        let transaction = TransactionID(high: random.next(), low: random.next())
        let question = StunWriter(StunMessageType(.request, .binding), transaction)
        let deadline = MonotonicTime.now() + timeout
        var wait = firstWait
        while MonotonicTime.now() < deadline {
            send(question.bytes, through: opened.socket, to: server)
            let end = min(deadline, MonotonicTime.now() + wait)
            while let bytes = receive(opened.socket, until: end) {
                guard let answer = try? StunMessage(bytes), answer.kind == .success,
                    answer.transaction == transaction, let seen = try? answer.xorAddress(.xorMappedAddress),
                    seen.family == host.family
                else { continue }
                return Answer(seen: seen, isPortKept: seen.port == opened.address.port)
            }
            wait = wait * 2
        }
        throw ApusError(
            .answerTimedOut, "the STUN server \(server) did not report the public address of \(host.hostDescription)")
    }

    private static func send(_ bytes: [UInt8], through socket: Int32, to server: TransportAddress) {
        let address = RawAddress(server)
        _ = address.withSocketAddress { sendto(socket, bytes, bytes.count, 0, $0, socklen_t(address.length)) }
    }

    /// The next datagram; nil if none comes in time.
    private static func receive(_ socket: Int32, until end: MonotonicTime) -> [UInt8]? {
        var buffer = [UInt8](repeating: 0, count: 2_048)
        while true {
            let left = (end - MonotonicTime.now()).milliseconds
            guard left > 0 else { return nil }
            var waiting = pollfd(fd: socket, events: Int16(POLLIN), revents: 0)
            _ = poll(&waiting, 1, Int32(left.rounded(.up)))
            let count = recv(socket, &buffer, buffer.count, 0)
            if count > 0 { return Array(buffer.prefix(count)) }
        }
    }
}
