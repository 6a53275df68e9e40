import ApusCore
import Foundation

/// The faults of `apus-bench cluster-faults`.
enum ClusterFault: String, CaseIterable, Sendable {
    case kill
    case stopShort = "stop-short"
    case stop
    case stopLong = "stop-long"
    case partition
    case split
    case silentOut = "silent-out"
    case silentIn = "silent-in"
    case cut
    case cutOneWay = "cut-one-way"
    case cutStore = "cut-store"
    case loss
    case storeLeader = "store-leader"
    case storeQuorum = "store-quorum"
    case fullDisk = "full-disk"

    var says: String {
        switch self {
        case .kill: "kill -9"
        case .stopShort: "SIGSTOP 100 to 150 ms"
        case .stop: "SIGSTOP 0.5 to 3 s"
        case .stopLong: "SIGSTOP 10 to 30 s"
        case .partition: "one node cut from all others"
        case .split: "a minority of two cut from three"
        case .silentOut: "a node's packets dropped"
        case .silentIn: "packets to a node dropped"
        case .cut: "two nodes cut from each other"
        case .cutOneWay: "the same, one direction"
        case .cutStore: "a node cut from etcd"
        case .loss: "5 to 30 % of packets lost at a node"
        case .storeLeader: "kill -9 etcd's leader"
        case .storeQuorum: "etcd without a majority for 10 s"
        case .fullDisk: "no space for the nodes' files"
        }
    }

    /// True if the victims are declared dead, and start again.
    var ends: Bool {
        switch self {
        case .kill, .stop, .stopLong, .partition, .split, .silentOut, .silentIn: true
        case .stopShort, .cut, .cutOneWay, .cutStore, .loss, .storeLeader, .storeQuorum, .fullDisk: false
        }
    }

    /// The most time from the fault to the first sign of it: a death in the map, or a condition of a node.
    var detectMax: Double? {
        switch self {
        case .kill: 20
        case .stop, .stopLong, .partition, .split, .silentOut: 450
        case .silentIn, .cut, .cutOneWay: 600
        case .stopShort, .cutStore, .loss, .storeLeader, .storeQuorum, .fullDisk: nil
        }
    }

    /// The most time from the fault until each register served a change that was requested after it.
    var serveMax: Double? {
        switch self {
        case .kill: 150
        case .stopShort, .stop, .stopLong, .partition, .split, .silentOut: 450
        case .silentIn, .cut, .cutOneWay: 600
        case .cutStore, .loss, .storeLeader, .storeQuorum, .fullDisk: nil
        }
    }

    /// The conditions of nodes that are a sign of the fault. A death is the sign of those that ``ends``.
    var conditions: Set<String> {
        switch self {
        case .cut, .cutOneWay: ["path_cut"]
        case .cutStore, .storeQuorum: ["ownership_store_unreadable"]
        case .kill, .stopShort, .stop, .stopLong, .partition, .split, .silentOut, .silentIn, .loss, .storeLeader,
            .fullDisk:
            []
        }
    }

    /// How long it lasts, chosen at random within its range.
    func duration() -> Duration {
        let range: ClosedRange<Int64> =
            switch self {
            case .kill, .storeLeader: 1_500...2_500
            case .stopShort: 100...150
            case .stop: 500...3_000
            case .stopLong: 10_000...30_000
            case .partition, .split, .silentOut, .silentIn, .cut, .cutOneWay, .loss: 1_500...3_500
            // A node without changes finds it by its poll, every five seconds.
            case .cutStore: 7_000...8_000
            case .storeQuorum: 10_000...10_000
            case .fullDisk: 4_000...6_000
            }
        return .milliseconds(Int64.random(in: range))
    }

    /// The fewest nodes with which it makes sense.
    var nodesMin: Int { self == .split ? 5 : 3 }
}
