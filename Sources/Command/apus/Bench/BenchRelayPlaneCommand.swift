import ApusCore
import ApusRelay
import ApusTraversal
import ArgumentParser
import Foundation

/// The packet plane alone, for `scripts/bench relay`: it gives allocations on the loopback to anyone.
struct BenchRelayPlaneCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "relay-plane", abstract: "The relay's packet plane with open loopback allocations.",
        shouldDisplay: false)

    @Option(help: "The port of the doors, datagrams and streams, on 127.0.0.1.")
    var port: UInt16

    @Option(help: "Planes, one thread each.")
    var threads = 1

    func run() async throws {
        let door = TransportAddress(v4: 0x7F00_0001, port: port)
        let control = try RelayControl(
            planeCount: threads,
            configuration: PlaneConfiguration(datagramAddresses: [door], streamAddresses: [door])
        ) { _, _ in OpenRelayController() }
        defer { control.stop() }
        // Its parent ends it by closing its input.
        while let line = readLine() { if line == "stop" { break } }
    }
}

/// Answers Allocate and ChannelBind of loopback clients without asking who they are.
///
/// It measures the plane and nothing else: no credentials, no lifetimes, no permissions but those of channels.
private struct OpenRelayController: RelayController {
    private var allocations: [RelayFlow: (id: UInt32, relayed: TransportAddress)] = [:]
    private var nextID: UInt32 = 1

    mutating func tick(now: MonotonicTime, into commands: inout [(plane: UInt8, command: PlaneCommand)]) {}

    mutating func handle(
        _ event: PlaneEvent, now: MonotonicTime, into commands: inout [(plane: UInt8, command: PlaneCommand)]
    ) {
        switch event {
        case .control(let flow, let message) where message.count >= 20:
            switch UInt16(message[0]) << 8 | UInt16(message[1]) {
            case 0x003: allocate(flow, message, &commands)
            case 0x009: bind(flow, message, &commands)
            default: break
            }
        case .streamClosed(let flow):
            if let allocation = allocations.removeValue(forKey: flow) {
                commands.append((flow.plane, .remove(allocation: allocation.id)))
            }
        default: break
        }
    }

    private mutating func allocate(
        _ flow: RelayFlow, _ message: [UInt8], _ commands: inout [(plane: UInt8, command: PlaneCommand)]
    ) {
        if allocations[flow] == nil {
            let any = TransportAddress(v4: 0x7F00_0001, port: 0)
            guard let opened = try? RelaySocket.open(any, bufferBytes: 512 * 1_024) else { return }
            allocations[flow] = (nextID, opened.address)
            commands.append((flow.plane, .install(allocation: nextID, flow: flow, socket: opened.socket)))
            nextID += 1
        }
        guard let relayed = allocations[flow]?.relayed else { return }
        let port = relayed.port ^ 0x2112
        let address = relayed.v4 ^ 0x2112_A442
        let attribute: [UInt8] =
            [0, 0x16, 0, 8, 0, 1, UInt8(port >> 8), UInt8(port & 0xFF)]
            + (0..<4).map { UInt8(truncatingIfNeeded: address >> (24 - 8 * $0)) }
        commands.append((flow.plane, .send(flow, Self.answer(message, attribute))))
    }

    private mutating func bind(
        _ flow: RelayFlow, _ message: [UInt8], _ commands: inout [(plane: UInt8, command: PlaneCommand)]
    ) {
        guard let allocation = allocations[flow] else { return }
        var number: UInt16?
        var peer: TransportAddress?
        var offset = 20
        while offset + 8 <= message.count {
            let count = Int(message[offset + 2]) << 8 | Int(message[offset + 3])
            let value = message[(offset + 4)...].prefix(count)
            guard value.count == count, count >= 4 else { return }
            if message[offset + 1] == 0x0C { number = UInt16(value[offset + 4]) << 8 | UInt16(value[offset + 5]) }
            if message[offset + 1] == 0x12, count == 8 {
                let bits = value.suffix(4).reduce(UInt32(0)) { $0 << 8 | UInt32($1) } ^ 0x2112_A442
                let port = UInt16(value[offset + 6]) << 8 | UInt16(value[offset + 7])
                peer = TransportAddress(v4: bits, port: port ^ 0x2112)
            }
            offset += 4 + (count + 3) & ~3
        }
        guard let number, let peer else { return }
        commands.append((flow.plane, .permit(allocation: allocation.id, peer: peer)))
        commands.append((flow.plane, .bindChannel(allocation: allocation.id, number: number, peer: peer)))
        commands.append((flow.plane, .send(flow, Self.answer(message, []))))
    }

    private static func answer(_ request: [UInt8], _ attribute: [UInt8]) -> [UInt8] {
        [0x01, request[1], 0, UInt8(attribute.count)] + request[4..<20] + attribute
    }
}
