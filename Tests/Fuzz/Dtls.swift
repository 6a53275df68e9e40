import ApusCore
import ApusRelay
import ApusTransport
import CApusTLS
import CApusTestTLS
import Foundation

/// D8, RFC 6347: datagrams reach a listener and its session doubled, out of order, joined, changed and forged, or not
/// at all. A session is for clients that return the cookie of their own address. A handshake succeeds whatever was
/// lost, if nothing was forged. After it, nothing that was made without the keys ends the session, and each record that
/// arrived comes out once, in both directions.
///
/// The input is a byte of settings, then events of two bytes: what happens, and how much of it.
func fuzzDtls(_ input: [UInt8]) {
    guard let first = input.first else { return }
    let run = DTLSRun(world, settings: first)
    // A receiver takes a record that 63 others have overtaken (RFC 6347 §4.1.2.6); so few events bring no more about.
    for place in stride(from: 1, to: min(input.count - 1, 2 * 112), by: 2) {
        run.step(input[place], input[place + 1])
    }
    run.finish()
}

/// What all runs share.
private struct World: @unchecked Sendable {  // SAFETY: a context is for many threads, and nobody frees it.
    let context: OpaquePointer
}

private let world: World = {
    let folder = FileManager.default.temporaryDirectory.appendingPathComponent("apus-fuzz-\(UUID())").path
    defer { try? FileManager.default.removeItem(atPath: folder) }
    let (certificate, key) = (folder + "/server.pem", folder + "/server.key")
    var reason = [CChar](repeating: 0, count: 256)
    do {
        try FileManager.default.createDirectory(atPath: folder, withIntermediateDirectories: true)
        let issued = try ClusterPKI.makeAuthority(cluster: ClusterID(unchecked: "fuzz"))
        try ClusterPKI.write(try ClusterPKI.issueClientEndpoint(authority: issued), certificate: certificate, key: key)
    } catch {
        preconditionFailure("there is no certificate: \(error)")
    }
    guard let context = apus_dtls_server_context(certificate, key, &reason, reason.count) else {
        preconditionFailure("libssl does not take the certificate")
    }
    return World(context: context)
}()

private struct Datagram {
    var bytes: [UInt8]
    /// The numbers of the records in it.
    var records: [Int] = []
    var isChanged = false
}

/// A listener with the session that came of it, as the relay drives them, and a client.
private final class DTLSRun {
    private let context: OpaquePointer
    private let server: LoopbackDatagrams
    private let home: LoopbackDatagrams
    /// Sockets whose addresses differ from the client's in the port, and in all but the port.
    private let foreign: [LoopbackDatagrams]
    private let ciphers: String
    private let splits: Bool
    private var room = [UInt8](repeating: 0, count: 1 << 16)

    private var listener: OpaquePointer?
    private var session: OpaquePointer?
    private var isSecured = false
    private var minute: UInt64 = 0
    /// Cookies that the server gave to the client's address, and when.
    private var cookies: [(cookie: [UInt8], minute: UInt64)] = []

    private var client: OpaquePointer
    private var isShakenHands = false
    private var isClientOver = false
    /// Which client this is, and to which one the session belongs.
    private var (clientNumber, sessionNumber) = (0, 0)
    /// The client's hello with a cookie.
    private var hello: (bytes: [UInt8], cookie: Range<Int>, minute: UInt64)?

    private var (toServer, toClient) = ([Datagram](), [Datagram]())
    private var (up, down) = (DTLSRecords(salt: 3), DTLSRecords(salt: 77))
    /// Somebody else had a say in the handshake, or in what the client heard; or one side has closed.
    private var isDisturbed = false
    private var isClosed = false
    /// Of time that passes: minutes since this client began, leaps of the clock, and those since the session began.
    private var (clientMinutes, leaps, sessionLeaps) = (UInt64(0), 0, 0)
    private var changes = 0

    init(_ world: World, settings: UInt8) {
        context = world.context
        ciphers = settings & 1 == 0 ? "ECDHE+AESGCM" : "ECDHE+CHACHA20"
        splits = settings & 4 != 0
        // A machine may have no IPv6.
        let isV6 = settings & 2 != 0 && LoopbackDatagrams(isV6: true, host: 1, port: 0, peer: nil) != nil
        guard let server = LoopbackDatagrams(isV6: isV6, host: 1, port: 0, peer: nil),
            let home = LoopbackDatagrams(isV6: isV6, host: 1, port: 0, peer: server),
            let otherPort = LoopbackDatagrams(isV6: isV6, host: 1, port: 0, peer: server),
            let client = apus_test_dtls_new(ciphers)
        else { preconditionFailure("there is no socket or no client") }
        (self.server, self.home, self.client) = (server, home, client)
        // Another program may have that port at the other address.
        foreign = [otherPort, LoopbackDatagrams(isV6: isV6, host: 2, port: home.port, peer: server)].compactMap(\.self)
        feedClient([])
    }

    deinit {
        apus_test_dtls_free(client)
        apus_dtls_free(session)
        apus_dtls_free(listener)
        apus_test_clock_set(0)
    }

    func step(_ event: UInt8, _ argument: UInt8) {
        let amount = Int(argument)
        switch event % 12 {
        case 0: for _ in 0...amount % 32 { deliverToServer() }
        case 1: for _ in 0...amount % 32 { deliverToClient() }
        case 2: clientWrites(DTLSWire.sizes[amount % DTLSWire.sizes.count])
        case 3: serverWrites(DTLSWire.sizes[amount % DTLSWire.sizes.count])
        case 4: up.excuse(change(&toServer, at: amount))
        case 5: up.excuse(disorder(&toServer, amount))
        case 6: down.excuse(amount < 192 ? disorder(&toClient, amount) : change(&toClient, at: amount - 192))
        case 7: toServer.insert(Datagram(bytes: DTLSWire.forged(amount), isChanged: true), at: 0)
        case 8: present(amount)
        case 9: passTime(amount)
        case 10: amount % 2 == 0 ? closeClient() : closeSession()
        default: beginAnew()
        }
        collect()
    }

    /// What is on its way arrives, and what was lost is sent again. Then an undisturbed session is there, and works.
    func finish() {
        for _ in 0..<8 {
            deliverAll()
            if isDisturbed || isClosed { return }
            if isShakenHands, isSecured, sessionNumber == clientNumber { break }
            // A busy kernel may still have a datagram.
            if home.waitsFor(milliseconds: 2) { collect() } else { leap() }
        }
        precondition(isShakenHands && isSecured && sessionNumber == clientNumber, "an undisturbed handshake fails")
        clientWrites(Int(APUS_DTLS_PAYLOAD_MAX))
        serverWrites(Int(APUS_DTLS_PAYLOAD_MAX))
        deliverAll()
        precondition(up.isWhole, "a record is missing at the server")
        precondition(down.isWhole, "a record is missing at the client")
    }

    private func deliverAll() {
        for _ in 0..<32 where !toServer.isEmpty || !toClient.isEmpty {
            for _ in toServer { deliverToServer() }
            for _ in toClient { deliverToClient() }
        }
    }

    // MARK: - The server, as the relay drives it

    private func deliverToServer() {
        guard !toServer.isEmpty else { return }
        let datagram = toServer.removeFirst()
        withExactMemory(datagram.bytes) { bytes, size in
            let isHello = ClientMessage.isDatagramHello(bytes, size)
            if session == nil || isSecured && isHello {
                up.excuse(datagram.records)
                knock(bytes, datagram)
            } else {
                if !isSecured {
                    up.excuse(datagram.records)
                    if datagram.isChanged { isDisturbed = true }
                }
                advance(bytes, size)
            }
        }
        collect()
    }

    private func knock(_ bytes: UnsafeRawPointer, _ datagram: Datagram) {
        if listener == nil { listener = apus_dtls_new(context, server.socket) }
        guard let dtls = listener else { preconditionFailure("there is no listener") }
        let isProven = home.listen(dtls, bytes, datagram.bytes.count, minute) == 1
        let head = datagram.bytes.prefix(512)
        let isDue = cookies.contains { $0.minute + 1 >= minute && head.firstRange(of: $0.cookie) != nil }
        precondition(!isProven || isDue, "a session without a cookie")
        guard isProven else {
            let before = toClient.count
            collect()
            // An answer has the record's number of what it answers, and a client takes none with a lower one after it.
            for place in toClient.indices.dropFirst(before) { toClient[place].isChanged = datagram.isChanged }
            precondition(toClient.count - before <= 1, "an unproven address gets more than one answer")
            precondition(
                toClient.dropFirst(before).allSatisfy { $0.bytes.count <= datagram.bytes.count },
                "the answer to an unproven address is longer than what came from there")
            return
        }
        // A hello that comes late, doubled or changed takes the place of its own client's session.
        if session != nil, sessionNumber == clientNumber { isDisturbed = true }
        if datagram.isChanged { isDisturbed = true }
        apus_dtls_free(session)
        (session, listener, isSecured, sessionNumber, sessionLeaps) = (dtls, nil, false, clientNumber, 0)
        advance(bytes, 0)
    }

    private func advance(_ bytes: UnsafeRawPointer, _ size: Int) {
        guard let dtls = session else { return }
        let isUndisturbed = !isDisturbed && !isClosed && sessionNumber == clientNumber
        apus_dtls_feed(dtls, bytes, size)
        if !isSecured {
            let state = apus_dtls_handshake(dtls)
            precondition(state >= 0 || !isUndisturbed, "the server refuses an undisturbed handshake")
            if state < 0 { freeSession() }
            guard state == 1 else { return }
            isSecured = true
        }
        while true {
            let count = apus_dtls_read(dtls, &room, Int(APUS_DTLS_PAYLOAD_MAX))
            precondition(count >= 0 || !isUndisturbed, "a session ends that nobody closed (\(count))")
            if count < 0 { closeSession() }
            guard count > 0 else { return }
            up.arrive(room.prefix(count))
        }
    }

    private func closeSession() {
        guard let dtls = session else { return }
        if sessionNumber == clientNumber { isClosed = true }
        if isSecured { apus_dtls_close(dtls) }
        freeSession()
    }

    private func freeSession() {
        apus_dtls_free(session)
        (session, isSecured) = (nil, false)
    }

    private func serverWrites(_ size: Int) {
        guard let dtls = session, isSecured else { return }
        let record = down.next(size: size)
        let result = apus_dtls_write(dtls, record.bytes, record.bytes.count)
        precondition(result == 1, "a session does not write (\(result))")
        guard home.waitsFor(milliseconds: 5000) else { preconditionFailure("a record was written and not sent") }
        collect()
        // Datagrams of a handshake may have waited too.
        let last = toClient.count - 1
        precondition(toClient[last].bytes.first == 23, "something else than a record was sent")
        toClient[last].records = [record.number]
        // The client of another session cannot read it.
        if sessionNumber != clientNumber { down.excuse([record.number]) }
    }

    /// What the server has sent to the client.
    private func collect() {
        while let bytes = home.receive() {
            let cookie = DTLSWire.cookie(of: bytes)
            if let cookie { cookies.append((cookie, minute)) }
            // The handshake of a client before is lost: the new one would take it for its own.
            let isForeign = session != nil && sessionNumber != clientNumber && cookie == nil && bytes.first != 23
            if !isForeign { toClient.append(Datagram(bytes: bytes)) }
        }
    }

    // MARK: - The client

    private func deliverToClient() {
        guard !toClient.isEmpty else { return }
        let datagram = toClient.removeFirst()
        if datagram.isChanged { isDisturbed = true }
        if !isShakenHands { down.excuse(datagram.records) }
        feedClient(datagram.bytes)
    }

    private func feedClient(_ datagram: [UInt8]) {
        guard !isClientOver else { return }
        withExactMemory(datagram) { bytes, size in
            apus_test_dtls_feed(client, bytes, size)
            defer { takeFromClient() }
            if !isShakenHands {
                let state = apus_test_dtls_handshake(client)
                precondition(state >= 0 || isDisturbed || isClosed, "the client refuses an undisturbed handshake")
                isClientOver = state < 0
                guard state == 1 else { return }
                isShakenHands = true
            }
            while !isClientOver {
                let count = apus_test_dtls_read(client, &room, room.count)
                precondition(count >= 0 || isDisturbed || isClosed, "the client's session ends that nobody closed")
                isClientOver = count < 0
                guard count > 0 else { return }
                down.arrive(room.prefix(count))
            }
        }
    }

    private func clientWrites(_ size: Int) {
        guard isShakenHands, !isClientOver else { return }
        let record = up.next(size: size)
        guard apus_test_dtls_write(client, record.bytes, record.bytes.count) == 1 else {
            return precondition(isDisturbed || isClosed, "the client does not write")
        }
        takeFromClient(records: [record.number])
    }

    private func closeClient() {
        guard isShakenHands, !isClientOver else { return }
        apus_test_dtls_close(client)
        takeFromClient()
        (isClosed, isClientOver) = (true, true)
    }

    /// Another client at the same address; what is on its way is lost. Nothing of before keeps it from a session.
    private func beginAnew() {
        guard clientNumber < 4, let next = apus_test_dtls_new(ciphers) else { return }
        apus_test_dtls_free(client)
        client = next
        clientNumber += 1
        (isShakenHands, isClientOver, isDisturbed, isClosed) = (false, false, false, false)
        (clientMinutes, hello) = (0, nil)
        (toServer, toClient) = ([], [])
        up.excuseAll()
        down.excuseAll()
        feedClient([])
    }

    private func takeFromClient(records: [Int] = []) {
        while true {
            let count = apus_test_dtls_take(client, &room, room.count)
            guard count >= 0 else { return }
            let bytes = Array(room.prefix(count))
            for given in cookies {
                if let range = bytes.prefix(512).firstRange(of: given.cookie) { hello = (bytes, range, given.minute) }
            }
            let parts = splits ? DTLSWire.split(bytes) : [bytes]
            toServer += parts.map { Datagram(bytes: $0, records: $0.first == 23 ? records : []) }
        }
    }

    // MARK: - What else happens

    private func change(_ way: inout [Datagram], at offset: Int) -> [Int] {
        guard let count = way.first?.bytes.count, count > 0 else { return [] }
        way[0].bytes[offset % count] ^= 1 << ((offset + changes) % 8)
        way[0].isChanged = true
        changes += 1
        return way[0].records
    }

    /// Loses, doubles, swaps or joins: the records that may be missing then.
    private func disorder(_ way: inout [Datagram], _ amount: Int) -> [Int] {
        guard !way.isEmpty else { return [] }
        let place = (amount >> 2) % way.count
        switch amount & 3 {
        case 0: return way.remove(at: place).records
        case 1 where way.count < 256: way.insert(way[place], at: 0)
        case 2 where place + 1 < way.count: way.swapAt(place, place + 1)
        case 3 where place + 1 < way.count && way[place].bytes.count + way[place + 1].bytes.count <= 1 << 14:
            let next = way.remove(at: place + 1)
            way[place].bytes += next.bytes
            way[place].records += next.records
            way[place].isChanged = way[place].isChanged || next.isChanged
            return way[place].isChanged ? way[place].records : []
        default: break
        }
        return []
    }

    /// Shows a listener the client's hello with its cookie: from this address and another, whole, changed and cut, in
    /// the minute of the cookie and in those around it.
    private func present(_ amount: Int) {
        guard let hello, let dtls = apus_dtls_new(context, server.socket) else { return }
        defer { apus_dtls_free(dtls) }
        var (bytes, from, age, isSound) = (hello.bytes, home, UInt64(0), true)
        switch (amount & 3, amount >> 2) {
        case (0, let number):
            age = UInt64(number % 8) &- 3
            isSound = age < 2
        case (1, let number):
            (from, isSound) = (foreign[number % foreign.count], false)
        case (2, let number):
            bytes[hello.cookie.lowerBound + number % hello.cookie.count] ^= 1 << (number % 8)
            isSound = false
        case (_, let number):
            (bytes, isSound) = (Array(bytes.prefix(bytes.count * number / 64)), false)
        }
        let result = withExactMemory(bytes) { from.listen(dtls, $0, $1, hello.minute &+ age) }
        precondition((result == 1) == isSound, "a cookie is judged wrongly: \(result), age \(Int64(bitPattern: age))")
        guard !isSound, bytes.count == hello.bytes.count else { return }
        guard from.waitsFor(milliseconds: 5000), let answer = from.receive() else {
            preconditionFailure("a client without a cookie is given none")
        }
        precondition(DTLSWire.cookie(of: answer) != nil && answer.count <= bytes.count, "something else than a cookie")
    }

    private func passTime(_ amount: Int) {
        minute += UInt64(amount & 3)
        clientMinutes += UInt64(amount & 3)
        // libssl's clients take no second cookie in the place of one that grew old.
        if clientMinutes >= 2, !isShakenHands { isDisturbed = true }
        if amount & 4 != 0, leaps < 2 { leap() }
    }

    /// As long as libssl waits at most before it sends again. A handshake that takes too long is ended.
    private func leap() {
        leaps += 1
        apus_test_clock_set(Int64(leaps) * 61)
        if let dtls = session, !isSecured {
            sessionLeaps += 1
            let isLate = sessionLeaps >= 4 || apus_dtls_tick(dtls) < 0
            if isLate { freeSession() }
        }
        if !isShakenHands, !isClientOver, apus_test_dtls_tick(client) < 0 { isClientOver = true }
        takeFromClient()
        collect()
    }
}
