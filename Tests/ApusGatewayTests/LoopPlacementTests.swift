import ApusGateway
import Testing

@Suite("Placement of connections on loops")
struct LoopPlacementTests {
    private let placement = LoopPlacement()

    @Test("Loops are filled one after the other, a step at a time")
    func steps() {
        var loads = [LoopPlacement.Load](repeating: .init(), count: 3)
        var order: [Int] = []
        for _ in 0..<(256 * 4) {
            let choice = placement.choice(among: loads)
            loads[choice].connectionCount += 1
            if order.last != choice { order.append(choice) }
        }
        #expect(order == [0, 1, 2, 0])
        #expect(loads.map(\.connectionCount) == [512, 256, 256])
    }

    @Test("A loop that is busy for half of its time is passed over; where all are, the least busy one is taken")
    func busy() {
        #expect(placement.choice(among: [.init(busyShare: 0.51), .init(connectionCount: 300)]) == 1)
        #expect(placement.choice(among: [.init(busyShare: 0.9), .init(connectionCount: 300, busyShare: 0.7)]) == 1)
    }

    @Test("A storm of unauthenticated clients goes to all loops")
    func storm() {
        var loads = [LoopPlacement.Load](repeating: .init(), count: 4)
        for _ in 0..<80 {
            let choice = placement.choice(among: loads)
            loads[choice].connectionCount += 1
            loads[choice].unauthenticatedCount += 1
        }
        #expect(loads.map(\.unauthenticatedCount) == [24, 24, 16, 16])
    }

    @Test("A full loop gets nothing while another has room")
    func full() {
        #expect(placement.choice(among: [.init(isFull: true), .init(busyShare: 1)]) == 1)
    }
}
