import ApusCore
import ApusTraversal

private let flow = RelayFlow(
    plane: 0, transport: .udp, local: TransportAddress(v4: 0x0606_0606, port: 3478),
    remote: TransportAddress(v4: 0x0505_0505, port: 1000))
private let start = MonotonicTime(nanoseconds: 1_000_000_000)
private let fresh: TurnServerStateMachine = {
    let credentials = RelayCredentials(realm: "apus", current: [1, 2, 3])
    var configuration = TurnServerConfiguration(credentials: credentials, nonceKey: [4, 5, 6])
    configuration.sourceRows = 8
    configuration.isTCPAllowed = true
    return TurnServerStateMachine(configuration, random: SeededRandom(seed: 1), unixSeconds: 1, now: start)
}()

/// D8: a message is refused, or every value of it can be asked for and it means the same when its attributes are
/// written again; a stream is cut the same whole and in pieces; an unauthenticated client gets short answers, and
/// the server keeps nothing of it.
func fuzzStun(_ input: [UInt8]) {
    if let message = try? StunMessage(input) {
        askForAll(message)
        rewrite(message)
    }
    if let header = try? ChannelDataHeader(datagram: input) {
        precondition(header.dataByteCount + 4 <= input.count, "ChannelData has more than its datagram")
    }
    precondition(split(input, step: max(1, input.count)) == split(input, step: 3), "a stream is cut otherwise")
    var machine = fresh
    for case .reply(_, let answer) in machine.receive(input, on: flow, at: start) {
        precondition(
            answer.count <= input.count + 120, "an unauthenticated client is answered with much more than was asked")
        precondition((try? StunMessage(answer)) != nil, "an answer cannot be read")
    }
    precondition(
        machine.allocationCount == 0 && machine.nextDeadline == nil, "an unauthenticated client leaves something behind"
    )
    readProxyHeader(input)
}

/// A header that is read as it asks to be is the same as in one piece, and bounded.
private func readProxyHeader(_ input: [UInt8]) {
    var count = 0
    while case .incomplete(let wanted) = ProxyHeader(input.prefix(count)) {
        precondition(wanted > count && wanted <= ProxyHeader.byteCountMax, "a header wants nothing, or too much")
        guard wanted <= input.count else { return }
        count = wanted
    }
    let header = ProxyHeader(input.prefix(count))
    precondition(header == ProxyHeader(input), "a header is read otherwise in pieces")
    if case .complete(let byteCount, _) = header { precondition(byteCount == count, "a header has another length") }
}

private func askForAll(_ message: StunMessage) {
    for type in message.attributes {
        _ = try? message.number32(type)
        _ = try? message.number64(type)
        _ = try? message.text(type)
        _ = try? message.address(type)
        _ = try? message.xorAddress(type)
        _ = try? message.xorAddresses(type, countMax: 16)
        _ = try? message.familyNumber(type)
    }
    _ = try? message.errorValue()
    _ = try? message.channelNumber()
    _ = try? message.requestedTransport()
    _ = try? message.evenPort()
    _ = try? message.passwordAlgorithm()
    _ = try? message.icmp()
    _ = message.isFingerprintRight
    for algorithm in StunIntegrity.Algorithm.allCases {
        precondition(!message.verifies(algorithm, key: StunKey(password: "unknown to all")), "a key was guessed")
    }
}

private func rewrite(_ message: StunMessage) {
    var writer = StunWriter(message.type, message.transaction)
    for type in message.attributes { writer.add(type, message.value(of: type) ?? []) }
    guard let again = try? StunMessage(writer.bytes) else { preconditionFailure("a written message is not read") }
    precondition(again.attributes == message.attributes, "a message has other attributes when written again")
    for type in message.attributes {
        precondition(again.value(of: type).map { Array($0) } == message.value(of: type).map { Array($0) })
        if let address = try? message.xorAddress(type) {
            precondition(address.family == .v4 || !(address.high == 0 && address.low >> 32 == 0xffff))
        }
    }
}

/// The messages of a stream and whether it broke; at most as many as it has bytes.
private func split(_ input: [UInt8], step: Int) -> [StunStreamSplitter.Message?] {
    var splitter = StunStreamSplitter(stunByteCountMax: 2048)
    var found: [StunStreamSplitter.Message?] = []
    for start in stride(from: 0, to: input.count, by: step) {
        splitter.append(input[start..<min(start + step, input.count)])
        do {
            while let message = try splitter.next() { found.append(message) }
        } catch { return found + [nil] }
    }
    return found
}
