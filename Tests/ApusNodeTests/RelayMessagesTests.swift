import ApusCore
import ApusRelay
import ApusRelayService
import ApusTraversal
import ApusWire
import Foundation
import SwiftProtobuf
import Testing

@Suite("What relays say to each other (proto/apus/relay.proto)")
struct RelayMessagesTests {
    private let v4 = TransportAddress(v4: 0x0102_0304, port: 5_678)
    private let v6 = TransportAddress(v6High: 0x2606_4700_0000_0001, low: 2, port: 9)

    private var mirror: AllocationMirror {
        AllocationMirror(
            ticket: MobilityTicket(high: 1, low: 2), username: "9:ann", relayed: [v4], remaining: .seconds(60),
            permissions: [v4.host, v6.host],
            channels: [AllocationMirror.Channel(number: 0x4000, peer: v6)])
    }

    private func expectMalformed(_ what: Comment, _ body: () throws(ApusError) -> Void) {
        do throws(ApusError) {
            try body()
            Issue.record("it was taken")
        } catch {
            #expect(error.code == .malformed, what)
        }
    }

    @Test("A mirror comes back from the wire as it went")
    func mirrorReturns() throws {
        let bytes: [UInt8] = try mirror.wire.serializedBytes()
        #expect(try AllocationMirror(RelayWireMirror(serializedBytes: bytes)) == mirror)
        let changes: [MirrorChange] = [.ended(MobilityTicket(high: 3, low: 4)), .kept(mirror, replacing: nil)]
        #expect(try RelayWireMirrored(changes).changes() == changes)
    }

    @Test("A mirror with a ticket, an address or a channel that is none is refused, and one with too many peers")
    func malformed() throws {
        let changes: [(String, (inout RelayWireMirror) -> Void)] = [
            ("ticket", { $0.ticket = Data([1]) }), ("relayed", { $0.relayed = [Data([1, 2, 3])] }),
            ("two families at most", { $0.relayed = Array(repeating: $0.relayed[0], count: 3) }),
            ("permission", { $0.permissions[0] = Data(repeating: 1, count: 7) }),
            ("channel", { $0.channels[0].number = 70_000 }), ("peer", { $0.channels[0].peer = Data() }),
            ("name", { $0.username = String(repeating: "u", count: 509) }),
            ("permissions", { $0.permissions = Array(repeating: $0.permissions[0], count: 257) }),
        ]
        for (what, change) in changes {
            var wire = mirror.wire
            change(&wire)
            expectMalformed("\(what)") { () throws(ApusError) in _ = try AllocationMirror(wire) }
        }
        var batch = RelayWireMirrored()
        batch.ended = [Data(repeating: 0, count: 15)]
        expectMalformed("ended") { () throws(ApusError) in _ = try batch.changes() }
        batch.ended = Array(repeating: Data(repeating: 0, count: 16), count: 4_097)
        expectMalformed("too many") { () throws(ApusError) in _ = try batch.changes() }
    }

    @Test("Whatever bytes come, reading them ends with a value or with 10001", arguments: 0..<200 as Range<UInt64>)
    func anything(seed: UInt64) throws {
        var random = SeededRandom(seed: seed)
        var bytes: [UInt8] = try RelayWireMirrored([.kept(mirror, replacing: nil)]).serializedBytes()
        for _ in 0..<3 {
            let index = Int.random(in: 0..<bytes.count, using: &random)
            bytes[index] = UInt8.random(in: 0...255, using: &random)
        }
        guard let read = try? RelayWireMirrored(serializedBytes: bytes) else { return }
        do throws(ApusError) {
            _ = try read.changes()
        } catch {
            #expect(error.code == .malformed, "seed \(seed)")
        }
    }

    @Test("Reports come back as they went; endpoints of unknown kinds are left out, lists that do not fit refused")
    func report() throws {
        let report = RelayReport(
            endpoints: [RelayEndpoint(transport: .udp, address: v4), RelayEndpoint(transport: .tls, address: v6)],
            domain: "relay.example", isDraining: true, usage: [RelayUsage(user: "ann", allocations: 2)], isWhole: false,
            advertised: HostPort(host: "relay.example", port: 443), addresses: [v4.host, v6.host],
            relays: [v6.host])
        #expect(try RelayReport(report.wire) == report)
        var wire = report.wire
        wire.endpoints.append(.with { $0.transport = 77 })
        #expect(try RelayReport(wire) == report)
        var many = wire
        many.addresses = Array(repeating: v4.wire, count: RelayRoster.addressesMax + 1)
        expectMalformed("addresses") { () throws(ApusError) in _ = try RelayReport(many) }
        many.addresses = [Data([1])]
        expectMalformed("address") { () throws(ApusError) in _ = try RelayReport(many) }
        many.addresses = []
        many.relays = Array(repeating: v4.wire, count: RelayRoster.addressesMax + 1)
        expectMalformed("relays") { () throws(ApusError) in _ = try RelayReport(many) }
        wire.counts = []
        expectMalformed("counts") { () throws(ApusError) in _ = try RelayReport(wire) }
    }
}
