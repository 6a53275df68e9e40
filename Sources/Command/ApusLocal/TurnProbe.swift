package import ApusCore
package import ApusTraversal
import CApusTLS
import Glibc

/// An endpoint of a TURN server.
package struct TurnEndpoint {
    /// The server's address.
    package var server: HostPort
    /// The transport to the server.
    package var transport: RelayFlow.Transport
    /// The authorities of the server's certificate, a PEM file: empty for the system's, nil to skip verification.
    package var authorityFile: String? = ""

    /// Describes an endpoint. Nothing is connected.
    package init(server: HostPort, transport: RelayFlow.Transport, authorityFile: String? = "") {
        self.server = server
        self.transport = transport
        self.authorityFile = authorityFile
    }
}

/// A TURN client for operators: it allocates, binds one channel, and exchanges data.
/// Every wait is bounded by ``answerTimeout``. Not safe to share between threads.
package final class TurnProbe {
    /// The time-out of one answer, including retransmissions.
    package static let answerTimeout = Duration.seconds(4)
    /// The maximum number of transmissions of a datagram's request, 0.5 s apart (RFC 8489 §6.2.1).
    private static let triesMax = 8
    /// The maximum number of data messages that are kept while the client waits for an answer. The oldest is dropped.
    private static let waitingMax = 1024
    /// The number of the one channel.
    package static let channel: UInt16 = 0x4000

    /// The server's address.
    package let server: HostPort
    /// The ticket that moves the allocation to another address or node (RFC 8016); empty if there is none.
    package private(set) var ticket: [UInt8] = []
    /// The server to which this client was redirected (300, ALTERNATE-SERVER), if any.
    package private(set) var alternate: TransportAddress?
    private let isStream: Bool
    // SAFETY: created in `init`, freed in `deinit`, with one owner.
    private let secure: OpaquePointer?
    private let username: String
    private let password: String
    private let descriptor: Int32
    private var splitter = StunStreamSplitter()
    private var challenge: (realm: String, nonce: String)?
    private var answers: [StunMessage] = []
    private var waiting: [[UInt8]] = []
    private var random = SystemRandomNumberGenerator()

    /// Connects, with a TLS or DTLS handshake if the endpoint requires one.
    /// - Throws: 10010 if the server's name has no address, 21022 if the connection is refused or the certificate is
    ///   not trusted.
    package init(_ endpoint: TurnEndpoint, username: String, password: String) throws(ApusError) {
        server = endpoint.server
        isStream = endpoint.transport.isStream
        self.username = username
        self.password = password
        descriptor = try Self.connect(server, isStream: isStream)
        do throws(ApusError) {
            secure = try Self.secure(descriptor, endpoint)
        } catch {
            close(descriptor)
            throw error
        }
    }

    deinit {
        apus_tls_client_free(secure)
        close(descriptor)
    }

    private static func secure(_ descriptor: Int32, _ endpoint: TurnEndpoint) throws(ApusError) -> OpaquePointer? {
        guard endpoint.transport == .tls || endpoint.transport == .dtls else { return nil }
        var reason = [CChar](repeating: 0, count: 256)
        guard
            let secure = apus_tls_client_connect(
                descriptor, endpoint.transport == .dtls ? 1 : 0, endpoint.server.host, endpoint.authorityFile,
                Int32(answerTimeout.components.seconds), &reason, reason.count)
        else {
            let words = String(nullTerminated: reason)
            throw ApusError(.connectFailed, "\(endpoint.server) did not complete the handshake: \(words)")
        }
        return secure
    }

    /// Requests a relayed address, of the IPv6 family if the server's address shows that, and returns it.
    /// - Throws: 10005 without an answer, 12001 if the credentials are refused, 21025 for other refusals.
    package func allocate(withTicket: Bool = false) throws(ApusError) -> TransportAddress {
        let isV6 = server.host.contains(":")
        let answer = try ask(.allocate) {
            $0.add(requestedTransport: 17)
            if isV6 { $0.add(.requestedAddressFamily, family: .v6) }
            if withTicket { $0.add(.mobilityTicket, []) }
        }
        ticket = answer.value(of: .mobilityTicket).map { Array($0) } ?? []
        guard let relayed = try answer.xorAddress(.xorRelayedAddress) else {
            throw ApusError(.malformed, "\(server) allocated but sent no relayed address")
        }
        return relayed
    }

    /// Takes over another client's allocation at this server. Returns its relayed address, which is new if the
    /// allocation moves from another node. Throws as ``allocate()``.
    package func goOn(with ticket: [UInt8]) throws(ApusError) -> TransportAddress? {
        let answer = try ask(.refresh) { $0.add(.mobilityTicket, ticket) }
        self.ticket = answer.value(of: .mobilityTicket).map { Array($0) } ?? []
        return try answer.xorAddress(.xorRelayedAddress)
    }

    /// Binds ``channel`` to a peer, which also permits the peer. Throws as ``allocate()``.
    package func bind(_ peer: TransportAddress) throws(ApusError) {
        _ = try ask(.channelBind) {
            $0.add(channelNumber: Self.channel)
            $0.add(.xorPeerAddress, xorAddress: peer)
        }
    }

    /// Refreshes the allocation. Throws as ``allocate(withTicket:)``. If the server redirects, see ``alternate``.
    package func refresh() throws(ApusError) { _ = try ask(.refresh) { $0.add(.lifetime, number: UInt32(600)) } }

    /// Ends the allocation. Throws as ``allocate()``.
    package func end() throws(ApusError) { _ = try ask(.refresh) { $0.add(.lifetime, number: UInt32(0)) } }

    /// Sends data over the channel.
    package func send(_ data: [UInt8]) throws(ApusError) {
        try write(ChannelDataHeader.streamMessage(channel: Self.channel, data: data))
    }

    /// The next data of the channel; nil after the time-out.
    package func receive(_ timeout: Duration) throws(ApusError) -> [UInt8]? {
        let deadline = MonotonicTime.now() + timeout
        while waiting.isEmpty {
            guard try read(until: deadline) else { return nil }
        }
        return waiting.removeFirst()
    }

    // MARK: Requests

    private func ask(_ method: StunMethod, _ fill: (inout StunWriter) -> Void) throws(ApusError) -> StunMessage {
        // The first answer contains the realm and the nonce. A stale nonce is replaced once more.
        for _ in 0..<3 {
            let answer = try exchange(method, fill)
            guard answer.kind == .error else { return answer }
            let error = try answer.errorValue()
            let isAsking = challenge == nil || error?.code == .staleNonce
            guard isAsking, let realm = try answer.text(.realm), let nonce = try answer.text(.nonce) else {
                let number = error?.code.rawValue ?? 0
                let reason = error.map { UntrustedText.escaped($0.reason) } ?? ""
                if error?.code == .tryAlternate { alternate = try answer.address(.alternateServer) }
                throw ApusError(
                    number == 401 ? .tokenInvalid : .unavailable,
                    "\(server) refuses with \(number)\(reason.isEmpty ? "" : " " + reason)")
            }
            challenge = (realm, nonce)
        }
        throw ApusError(.tokenInvalid, "\(server) refused its own nonces")
    }

    private func exchange(_ method: StunMethod, _ fill: (inout StunWriter) -> Void) throws(ApusError) -> StunMessage {
        let transaction = TransactionID(high: random.next(), low: random.next())
        var writer = StunWriter(StunMessageType(.request, method), transaction)
        fill(&writer)
        if let challenge {
            writer.add(.username, text: username)
            writer.add(.realm, text: challenge.realm)
            writer.add(.nonce, text: challenge.nonce)
            writer.addIntegrity(
                .sha1, key: StunKey(username: username, realm: challenge.realm, password: password))
        }
        writer.addFingerprint()
        let deadline = MonotonicTime.now() + Self.answerTimeout
        for attempt in 1...Self.triesMax {
            if attempt == 1 || !isStream { try write(writer.bytes) }
            let next = isStream ? deadline : min(deadline, MonotonicTime.now() + .milliseconds(500))
            while true {
                if let index = answers.firstIndex(where: { $0.transaction == transaction }) {
                    let answer = answers[index]
                    answers.removeAll()
                    return answer
                }
                guard try read(until: next) else { break }
            }
            guard MonotonicTime.now() < deadline else { break }
        }
        throw ApusError(.deadlineExceeded, "\(server) did not answer")
    }

    // MARK: Socket

    private func write(_ bytes: [UInt8]) throws(ApusError) {
        var rest = bytes[...]
        while !rest.isEmpty {
            let count = rest.withUnsafeBytes { bytes in
                secure.map { apus_tls_client_write($0, bytes.baseAddress, bytes.count) }
                    ?? Glibc.send(descriptor, bytes.baseAddress, bytes.count, Int32(MSG_NOSIGNAL))
            }
            guard count > 0 else { throw failure() }
            rest = rest.dropFirst(isStream ? count : rest.count)
        }
    }

    /// Reads available bytes. Returns false after the deadline.
    private func read(until deadline: MonotonicTime) throws(ApusError) -> Bool {
        let milliseconds = (deadline - MonotonicTime.now()).milliseconds
        guard milliseconds > 0 else { return false }
        var ready = pollfd(fd: descriptor, events: Int16(POLLIN), revents: 0)
        if secure.map({ apus_tls_client_has_pending($0) }) != 1 {
            guard poll(&ready, 1, Int32(milliseconds.rounded(.up))) > 0 else { return false }
        }
        var bytes = [UInt8](repeating: 0, count: 65_536)
        let count =
            secure.map { apus_tls_client_read($0, &bytes, bytes.count) } ?? recv(descriptor, &bytes, bytes.count, 0)
        // libssl may need more than one read for a complete record.
        if secure != nil, count == 0 { return true }
        guard count > 0 || (count == 0 && !isStream) else { throw failure() }
        let received = Array(bytes.prefix(count))
        if isStream {
            splitter.append(received)
            while let message = try splitter.next() { take(message) }
        } else if let header = try? ChannelDataHeader(datagram: received) {
            take(.channelData(header.channel, Array(received.dropFirst(4).prefix(header.dataByteCount))))
        } else {
            take(.stun(received))
        }
        return true
    }

    private func take(_ message: StunStreamSplitter.Message) {
        switch message {
        case .channelData(Self.channel, let data):
            if waiting.count == Self.waitingMax { waiting.removeFirst() }
            waiting.append(data)
        case .channelData: break
        case .stun(let bytes):
            // Messages that are not answers are ignored.
            guard let answer = try? StunMessage(bytes), answer.kind == .success || answer.kind == .error else { return }
            answers.append(answer)
        }
    }

    private func failure() -> ApusError {
        ApusError(.connectFailed, "\(server): \(String(cString: strerror(errno)))")
    }

    private static func connect(_ server: HostPort, isStream: Bool) throws(ApusError) -> Int32 {
        var hints = addrinfo()
        hints.ai_socktype = Int32((isStream ? SOCK_STREAM : SOCK_DGRAM).rawValue)
        var list: UnsafeMutablePointer<addrinfo>?
        guard getaddrinfo(server.host, "\(server.port)", &hints, &list) == 0, let list else {
            throw ApusError(.noRoute, "\(server.host) has no address")
        }
        defer { freeaddrinfo(list) }
        var entry: UnsafeMutablePointer<addrinfo>? = list
        while let info = entry?.pointee {
            let descriptor = socket(info.ai_family, info.ai_socktype, info.ai_protocol)
            if descriptor >= 0 {
                // It also bounds the time to connect (socket(7)).
                // A struct timeval: seconds and microseconds.
                let limit = [Int(answerTimeout.components.seconds), 0]
                setsockopt(descriptor, SOL_SOCKET, SO_SNDTIMEO, limit, socklen_t(2 * MemoryLayout<Int>.size))
                if Glibc.connect(descriptor, info.ai_addr, info.ai_addrlen) == 0 { return descriptor }
                close(descriptor)
            }
            entry = info.ai_next
        }
        throw ApusError(.connectFailed, "\(server) refused the connection")
    }
}
