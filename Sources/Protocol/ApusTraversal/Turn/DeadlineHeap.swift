import ApusCore

/// A priority queue of deadlines; operations take O(log n). An entry is not removed when its deadline moves. The owner
/// stores the valid deadline and ignores other entries when they are due.
struct DeadlineHeap<Subject: Sendable>: Sendable {
    struct Entry: Sendable {
        let deadline: MonotonicTime
        let subject: Subject
    }

    private(set) var entries: [Entry] = []

    var first: Entry? { entries.first }

    mutating func push(_ subject: Subject, at deadline: MonotonicTime) {
        entries.append(Entry(deadline: deadline, subject: subject))
        siftUp(entries.count - 1)
    }

    mutating func pop() -> Entry? {
        guard let first = entries.first else { return nil }
        let last = entries.removeLast()
        if !entries.isEmpty {
            entries[0] = last
            siftDown(0)
        }
        return first
    }

    /// Removes invalid entries, in O(n).
    mutating func compact(keeping counts: (Entry) -> Bool) {
        entries = entries.filter(counts)
        for index in stride(from: entries.count / 2 - 1, through: 0, by: -1) { siftDown(index) }
    }

    private mutating func siftUp(_ start: Int) {
        var index = start
        while index > 0 {
            let parent = (index - 1) / 2
            guard entries[index].deadline < entries[parent].deadline else { return }
            entries.swapAt(index, parent)
            index = parent
        }
    }

    private mutating func siftDown(_ start: Int) {
        var index = start
        while true {
            var least = index
            for child in [2 * index + 1, 2 * index + 2] where child < entries.count {
                if entries[child].deadline < entries[least].deadline { least = child }
            }
            guard least != index else { return }
            entries.swapAt(index, least)
            index = least
        }
    }
}
