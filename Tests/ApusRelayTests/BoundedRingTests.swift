import ApusRelay
import ApusThreads
import Glibc
import Testing

@Suite("The ring between a plane and control (D8, D13)")
struct BoundedRingTests {
    @Test("It keeps the order, refuses what is over its bound, and has room again when something was taken")
    func bound() {
        let ring = BoundedRing<Int>(capacity: 4)
        #expect(ring.isEmpty)
        for number in 0..<4 { #expect(ring.push(number)) }
        #expect(!ring.push(4))
        #expect(ring.pop() == 0)
        #expect(ring.push(4))
        #expect((0..<4).map { _ in ring.pop() } == [1, 2, 3, 4])
        #expect(ring.pop() == nil)
        #expect(ring.isEmpty)
    }

    @Test("Two threads pass a hundred thousand elements in order")
    func threads() throws {
        let ring = BoundedRing<[Int]>(capacity: 64)
        let count = 100_000
        let producer = try OSThread(name: "ring") {
            var next = 0
            while next < count { if ring.push([next]) { next += 1 } else { sched_yield() } }
        }
        var expected = 0
        var wrong = 0
        while expected < count {
            guard let element = ring.pop() else {
                sched_yield()
                continue
            }
            if element != [expected] { wrong += 1 }
            expected += 1
        }
        producer.join()
        #expect(wrong == 0)
        #expect(ring.isEmpty)
    }
}
