import ApusCluster
import ApusContract
import ApusCore
import ApusWire
import Foundation
import SwiftProtobuf

// The play sessions of a device at the owner of its shard, which is the node to which the device publishes as well.
//
// They are in the memory of that node only. If it dies, or the shard moves, they are gone until the apps report again:
// a diagnosis then has the cluster's view alone, and says so. To replicate them would cost each viewer's start two
// messages between nodes, for reports that nobody may ever read.

extension EntityKind {
    static let plays = Self(rawValue: 22)
}

extension PlaysKeep: EntityMessage {
    typealias Reply = PlaysKept
    static var method: UInt16 { 0x01b1 }
    static var isIdempotent: Bool { true }
}

extension PlaysLook: EntityMessage {
    typealias Reply = PlaysLooked
    static var method: UInt16 { 0x01b2 }
    static var isIdempotent: Bool { true }
    package var isWithinBounds: Bool { source <= UInt32(UInt16.max) }
}

/// The last play sessions of a device (``PlayTable`` decides).
///
/// Isolation: an actor.
actor PlaysActor {
    private var table: PlayTable

    init(_ configuration: DiagnosisConfiguration) {
        table = PlayTable(
            sessionsMax: configuration.sessionsMax, accountSessionsMax: configuration.accountSessionsMax)
    }

    /// Keeps reports, and returns the number of sessions that were dropped for them.
    ///
    /// - Throws: 10001 if a report cannot be read; otherwise as ``PlayTable/enter(_:)``.
    func keep(_ message: PlaysKeep) throws(ApusError) -> Int {
        try table.enter(message.dataSinceMs)
        var dropped = 0
        for bytes in message.plays {
            guard let report = try? ClientPlayReport(serializedBytes: bytes), report.isWithinBounds else {
                throw ApusError(.malformed)
            }
            dropped += table.keep(report, of: message.account, now: .now())
        }
        return dropped
    }

    /// The sessions, the newest one first.
    ///
    /// - Throws: as ``PlayTable/enter(_:)``.
    func look(_ since: UInt64) throws(ApusError) -> [PlaysPlay] {
        try table.enter(since)
        let now = MonotonicTime.now()
        return table.plays.reversed().compactMap { play in
            guard let bytes: [UInt8] = try? play.report.serializedBytes() else { return nil }
            return .with {
                ($0.account, $0.report) = (play.account, Data(bytes))
                $0.ageMs = UInt64(max(0, (now - play.keptAt).milliseconds))
            }
        }
    }
}
