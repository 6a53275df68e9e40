import ApusCore
import ApusRelay
import ApusTraversal
import Glibc
import Testing

/// One plane on the loopback, driven as control drives it.
final class PlaneHarness {
    let plane: PlaneThread
    private var seen: [PlaneEvent] = []
    private var nextID: UInt32 = 1

    var endpoint: TransportAddress { plane.datagramAddresses[0] }
    var streamEndpoint: TransportAddress { plane.streamAddresses[0] }
    var secureEndpoint: TransportAddress { plane.secureStreamAddresses[0] }
    var sessionEndpoint: TransportAddress { plane.secureDatagramAddresses[0] }

    init(_ configure: (inout PlaneConfiguration) -> Void = { _ in }) throws {
        let any = TransportAddress(v4: LoopbackSocket.host, port: 0)
        var configuration = PlaneConfiguration(datagramAddresses: [any], streamAddresses: [any])
        configure(&configuration)
        plane = try PlaneThread(index: 0, configuration: configuration, control: try Waker.make())
    }

    deinit { plane.stop() }

    func flow(of client: LoopbackSocket) -> RelayFlow {
        RelayFlow(plane: 0, transport: .udp, local: endpoint, remote: client.address)
    }

    /// The flow of a client at this address that has sent control something.
    func flow(from address: TransportAddress) throws -> RelayFlow {
        try #require(event { if case .control(let flow, _) = $0, flow.remote == address { flow } else { nil } })
    }

    func command(_ command: PlaneCommand) { #expect(plane.link.command(command)) }

    /// Installs an allocation, and gives its number and relayed address.
    func install(_ flow: RelayFlow) throws -> (id: UInt32, relayed: TransportAddress) {
        let any = TransportAddress(v4: LoopbackSocket.host, port: 0)
        let opened = try RelaySocket.open(any, bufferBytes: 512 * 1_024)
        let id = nextID
        nextID += 1
        command(.install(allocation: id, flow: flow, socket: opened.socket))
        return (id, opened.address)
    }

    /// Installs, permits and binds 0x4000; what is sent after this finds it done.
    func installWithChannel(
        _ flow: RelayFlow, peer: TransportAddress
    ) throws -> (id: UInt32, relayed: TransportAddress) {
        let allocation = try install(flow)
        command(.permit(allocation: allocation.id, peer: peer, ports: 1...65_535))
        command(.bindChannel(allocation: allocation.id, number: 0x4000, peer: peer))
        settle()
        return allocation
    }

    /// Waits until the plane has taken all commands.
    func settle() {
        for _ in 0..<2_000 where !plane.link.commands.isEmpty { usleep(1_000) }
        // The last command was taken from the ring; the plane may still be busy with it.
        usleep(5_000)
    }

    /// The first event that fits, among those seen and those to come within five seconds.
    func event<Result>(_ pick: (PlaneEvent) -> Result?) -> Result? {
        for event in seen { if let result = pick(event) { return result } }
        let deadline = MonotonicTime.now() + .seconds(5)
        while MonotonicTime.now() < deadline {
            while let event = plane.link.events.pop() ?? plane.link.unauthenticated.pop() {
                seen.append(event)
                if let result = pick(event) { return result }
            }
            usleep(1_000)
        }
        return nil
    }

    /// The plane's counters once they fit.
    func counters(_ fit: (PlaneCounters) -> Bool) -> PlaneCounters? {
        event { if case .plane(_, let counters) = $0, fit(counters) { counters } else { nil } }
    }

    /// What an allocation carried, when it has been removed.
    func remove(_ id: UInt32) -> RelayTraffic? {
        command(.remove(allocation: id))
        return event { if case .counters(id, let traffic, isFinal: true) = $0 { traffic } else { nil } }
    }

    static func channelData(_ number: UInt16, _ payload: [UInt8]) -> [UInt8] {
        [UInt8(number >> 8), UInt8(number & 0xFF), UInt8(payload.count >> 8), UInt8(payload.count & 0xFF)] + payload
    }

    /// A Send indication to an IPv4 peer (RFC 8656 §11.1).
    static func sendIndication(_ peer: TransportAddress, _ payload: [UInt8]) -> [UInt8] {
        let address = peer.v4 ^ 0x2112_A442
        let port = peer.port ^ 0x2112
        let padded = payload + [UInt8](repeating: 0, count: (4 - payload.count % 4) % 4)
        let count = 12 + 4 + padded.count
        return [0, 0x16, UInt8(count >> 8), UInt8(count & 0xFF), 0x21, 0x12, 0xA4, 0x42]
            + [UInt8](repeating: 7, count: 12)
            + [0, 0x12, 0, 8, 0, 1, UInt8(port >> 8), UInt8(port & 0xFF)]
            + (0..<4).map { UInt8(truncatingIfNeeded: address >> (24 - 8 * $0)) }
            + [0, 0x13, UInt8(payload.count >> 8), UInt8(payload.count & 0xFF)] + padded
    }

    /// A request that only control can answer.
    static func request(_ type: UInt16, count: Int = 0) -> [UInt8] {
        [UInt8(type >> 8), UInt8(type & 0xFF), UInt8(count >> 8), UInt8(count & 0xFF), 0x21, 0x12, 0xA4, 0x42]
            + [UInt8](repeating: 9, count: 12 + count)
    }
}
