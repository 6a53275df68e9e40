import CApusNet

/// Sockets that are connected to one peer each, for busy channels. The kernel then needs no look-up of route and
/// address for a datagram (D8).
///
/// Concurrency model: confined to the plane's thread.
struct HotFlowTable: ~Copyable {
    struct Row {
        var socket: Int32 = -1
        /// The number of uses of this place.
        var generation: UInt32 = 0
        /// The row of its allocation.
        var allocation: UInt32 = 0
        /// The socket's marks of sent datagrams (``SendBatch/marks``), 0 for the system's own, and the time at which
        /// they were set.
        var marks: UInt32 = 0
        var markedAt: UInt64 = 0
    }

    let rows: UnsafeMutablePointer<Row>
    private let rowsMax: Int
    private var places = Places()
    private(set) var count = 0

    init(rowsMax: Int) {
        self.rowsMax = rowsMax
        rows = .allocate(capacity: max(1, rowsMax))
    }

    deinit {
        for index in 0..<places.used where rows[index].socket >= 0 { apus_close(rows[index].socket) }
        rows.deallocate()
    }

    var hasRoom: Bool { count < rowsMax }

    /// Takes a place; nil if there is none.
    mutating func insert(socket: Int32, allocation: UInt32) -> Int? {
        guard hasRoom else { return nil }
        let (index, isNew) = places.take()
        if isNew { (rows + index).initialize(to: Row()) }
        rows[index].socket = socket
        rows[index].generation &+= 1
        rows[index].allocation = allocation
        (rows[index].marks, rows[index].markedAt) = (0, 0)
        count += 1
        return index
    }

    /// Frees a place. Returns its socket, which the caller closes.
    mutating func release(_ index: Int) -> Int32 {
        defer { rows[index].socket = -1 }
        places.give(back: index)
        count -= 1
        return rows[index].socket
    }
}
