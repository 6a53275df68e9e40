import ApusCore
import Logging
import Testing

@Suite("Node conditions")
struct NodeConditionsTests {
    private static let disk = NodeConditions.Kind("disk", isUnhealthy: true)
    private static let clock = NodeConditions.Kind("clock", isUnhealthy: false)
    private let conditions = NodeConditions(log: Logger(label: "test") { _ in SwiftLogNoOpLogHandler() })

    @Test("A condition lasts from its first raise to its clear, and keeps its beginning")
    func lasts() {
        conditions.raise(Self.disk, "the disk is full")
        let since = conditions.all.first?.since
        conditions.raise(Self.disk, "the disk is still full")
        #expect(conditions.all.count == 1)
        #expect(conditions.all.first?.message == "the disk is still full")
        #expect(conditions.all.first?.since == since)
        conditions.clear(Self.disk)
        #expect(conditions.all.isEmpty)
    }

    @Test("Conditions of several types last side by side, and each says whether the node is unhealthy")
    func severalTypes() {
        conditions.raise(Self.clock, "the clock is 3 s ahead")
        conditions.raise(Self.disk, "the disk is full")
        conditions.clear(Self.disk)
        conditions.clear(Self.disk)
        #expect(conditions.all.map(\.type) == ["clock"])
        #expect(conditions.all.map(\.unhealthy) == [false])
    }
}
