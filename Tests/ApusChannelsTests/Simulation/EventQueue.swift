/// Events by time, then by the order in which they were added: one seed, one run.
struct EventQueue {
    private struct Entry {
        var time: UInt64
        var order: UInt64
        var body: () -> Void

        func isBefore(_ other: Entry) -> Bool { (time, order) < (other.time, other.order) }
    }

    private var heap: [Entry] = []
    private var order: UInt64 = 0

    mutating func add(at time: UInt64, _ body: @escaping () -> Void) {
        order += 1
        heap.append(Entry(time: time, order: order, body: body))
        var child = heap.count - 1
        while child > 0, heap[child].isBefore(heap[(child - 1) / 2]) {
            heap.swapAt(child, (child - 1) / 2)
            child = (child - 1) / 2
        }
    }

    mutating func takeFirst() -> (time: UInt64, body: () -> Void)? {
        guard let first = heap.first else { return nil }
        let last = heap.removeLast()
        if !heap.isEmpty {
            heap[0] = last
            var parent = 0
            while true {
                var least = parent
                for child in [2 * parent + 1, 2 * parent + 2]
                where child < heap.count && heap[child].isBefore(heap[least]) {
                    least = child
                }
                guard least != parent else { break }
                heap.swapAt(parent, least)
                parent = least
            }
        }
        return (first.time, first.body)
    }
}
