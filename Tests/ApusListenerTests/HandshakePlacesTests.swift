import ApusCore
import ApusListener
import Testing

@Suite("The places of unauthenticated connections (D13)")
struct HandshakePlacesTests {
    private final class Connection: Sendable {
        let number: Int
        init(_ number: Int) { self.number = number }
    }

    /// Connections that come one after the other, by number.
    private struct Arrivals {
        var places = HandshakePlaces<Connection>()
        var connections: [Connection] = []

        /// - Returns: the number of the connection that is closed for the new one.
        mutating func add(at seconds: Double, countMax: Int = 4) -> Int? {
            connections.append(Connection(connections.count))
            let now = MonotonicTime(nanoseconds: UInt64(seconds * 1e9))
            return places.add(connections[connections.count - 1], countMax: countMax, at: now)?.number
        }
    }

    @Test("The first half keeps its places for three seconds; in the other half the oldest is closed for a new one")
    func halves() {
        var arrivals = Arrivals()
        let closed = (0..<8).map { arrivals.add(at: 1 + Double($0) / 10) }
        #expect(closed == [nil, nil, nil, nil, 2, 3, 4, 5] && arrivals.places.count == 4)
        // Who has kept its place for long enough is the oldest.
        let late = [arrivals.add(at: 4.05), arrivals.add(at: 4.05), arrivals.add(at: 4.2)]
        #expect(late == [0, 6, 1])
    }

    @Test("A place that is free again is kept for the next one")
    func free() {
        var arrivals = Arrivals()
        for _ in 0..<4 { #expect(arrivals.add(at: 1) == nil) }
        arrivals.places.remove(arrivals.connections[0])
        arrivals.places.remove(arrivals.connections[0])
        #expect(arrivals.add(at: 1.1) == nil)
        // 1 and 4 are kept.
        let closed = (0..<4).map { _ in arrivals.add(at: 1.2) }
        #expect(closed == [2, 3, 5, 6])
    }

    @Test("With one place, a new connection closes the one before")
    func one() {
        var arrivals = Arrivals()
        let closed = (0..<3).map { _ in arrivals.add(at: 1, countMax: 1) }
        #expect(closed == [nil, 0, 1] && arrivals.places.count == 1)
    }

    @Test("Of 5,000 clients that come within a second, none of the first 512 is closed")
    func stampede() {
        var arrivals = Arrivals()
        var closed = Set<Int>()
        for number in 0..<5_000 {
            if let victim = arrivals.add(at: 1 + Double(number) / 5_000, countMax: 1_024) { closed.insert(victim) }
        }
        #expect(arrivals.places.count == 1_024 && closed.isDisjoint(with: 0..<512))
    }
}
