import ApusCluster
import ApusCore
import ApusWire

/// Something that happens at a moment of the run.
enum SimulationEvent {
    case start(name: Int)
    case tick
    case datagram(HeartbeatMessage, from: NodeID, HeartbeatVitals)
    case linkUp(NodeID)
    case linkLost(NodeID)
    case connectRefused(NodeID)
    case dial(NodeID)
    case apply(request: Int)
    case answer(StoreAnswer)
    case announced(revision: UInt64, from: NodeID)
    case replicaReady(ShardMove)
    /// The calls to a held shard's entities, whose end its owner awaits until then, have ended.
    case callsEnded(ShardMove, until: MonotonicTime)
    case holdAnswered(ShardMove, isDone: Bool)
    case askedToOwn(ShardMove)
    case write(FencedWrite)
    case writeRefused
    case resume
    case fault
    case heal
    case check
    /// By now every member reports the damage of the store.
    case damageSeen
    /// An operator restores the newest map of the nodes.
    case restore
    /// A planned move's target may have caught up.
    case replicaAwaited(ShardMove, until: MonotonicTime)
    /// The calls to a held shard may have ended.
    case quietAwaited(ShardMove, until: MonotonicTime)
    /// The path between two nodes was cut some time ago: their links go another way by now.
    case pathsSettled(Int, Int)
    case isolationSettled
    /// Datagrams are counted between the two, in a crowd without faults.
    case measure(isEnd: Bool)
    /// By now the victim's death is known.
    case bound(NodeID)
    /// A process that waits to join reads the map again.
    case joinRetried
    case work(SimulationWork)

    /// For the trace: which kind of event it is.
    var kind: UInt64 {
        switch self {
        case .start: 1
        case .tick: 2
        case .datagram: 3
        case .linkUp: 4
        case .linkLost: 5
        case .connectRefused: 6
        case .dial: 7
        case .apply: 8
        case .answer: 9
        case .announced: 10
        case .replicaReady: 11
        case .callsEnded: 12
        case .holdAnswered: 13
        case .askedToOwn: 14
        case .write: 15
        case .writeRefused: 16
        case .resume: 17
        case .fault: 18
        case .heal: 19
        case .check: 20
        case .damageSeen: 21
        case .restore: 22
        case .replicaAwaited: 23
        case .quietAwaited: 24
        case .pathsSettled: 25
        case .isolationSettled: 26
        case .measure: 27
        case .bound: 28
        case .joinRetried: 29
        case .work(let work): 32 + work.kind
        }
    }
}

/// Events by time, then by the order in which they were added: one seed, one run.
struct SimulationQueue {
    struct Entry {
        var time: UInt64
        var order: UInt64
        /// The process at which it happens; -1 for the world.
        var process: Int
        var event: SimulationEvent

        func isBefore(_ other: Entry) -> Bool { time != other.time ? time < other.time : order < other.order }
    }

    private var heap: [Entry] = []
    private var order: UInt64 = 0

    mutating func add(_ event: SimulationEvent, process: Int, at time: MonotonicTime) {
        order += 1
        heap.append(Entry(time: time.nanoseconds, order: order, process: process, event: event))
        var child = heap.count - 1
        while child > 0, heap[child].isBefore(heap[(child - 1) / 2]) {
            heap.swapAt(child, (child - 1) / 2)
            child = (child - 1) / 2
        }
    }

    mutating func takeFirst() -> Entry? {
        guard let first = heap.first else { return nil }
        let last = heap.removeLast()
        guard !heap.isEmpty else { return first }
        heap[0] = last
        var parent = 0
        while true {
            var least = parent
            let (left, right) = (2 * parent + 1, 2 * parent + 2)
            if left < heap.count, heap[left].isBefore(heap[least]) { least = left }
            if right < heap.count, heap[right].isBefore(heap[least]) { least = right }
            guard least != parent else { return first }
            heap.swapAt(parent, least)
            parent = least
        }
    }
}
