import ApusCore
import ApusRelay
import ApusRelayService
import ApusTestKit
import ApusTraversal
import ApusWire
import Foundation
import SwiftProtobuf
import Testing

@Suite("Numbers in what relays say to each other (D8)")
struct RelayNumberTests {
    private static let mirror = RelayWireMirror.with {
        $0.ticket = Data(repeating: 7, count: 16)
        $0.username = "1:ann"
        $0.relayed = [Data([10, 0, 0, 1, 0x80, 1])]
        $0.remainingMs = 600_000
        $0.permissions = [Data([10, 0, 0, 2, 0, 1])]
        $0.channels = [
            .with {
                $0.number = 0x4000
                $0.peer = Data([10, 0, 0, 2, 0, 9])
            }
        ]
    }

    @Test("A mirror of an allocation is refused, or lasts no longer than a day")
    func mirrors() throws {
        var readCount = 0
        for bytes in WireExtremes.variants(of: try Self.mirror.serializedBytes()) {
            guard let wire = try? RelayWireMirror(serializedBytes: bytes), let mirror = try? AllocationMirror(wire)
            else { continue }
            readCount += 1
            #expect(mirror.remaining >= .zero && mirror.remaining <= .seconds(86_400))
        }
        #expect(readCount > 4)
    }

    @Test("A node's word about its users is refused, or counts no more than its type holds")
    func users() throws {
        let sample = RelayWireReport.with {
            $0.endpoints = [
                .with {
                    $0.transport = 1
                    $0.address = Data([10, 0, 0, 1, 0xd, 0x96])
                }
            ]
            $0.draining = true
            $0.users = ["ann", "bob"]
            $0.counts = [1, 2]
            $0.whole = true
        }
        var readCount = 0
        for bytes in WireExtremes.variants(of: try sample.serializedBytes()) {
            guard let wire = try? RelayWireReport(serializedBytes: bytes), let said = try? RelayReport(wire) else {
                continue
            }
            readCount += 1
            #expect(said.usage.allSatisfy { (0...Int(UInt32.max)).contains($0.allocations) })
        }
        #expect(readCount > 4)
    }
}
