import ApusCore
import ApusLocal
import Testing

@Suite("Packets that wait for their time")
struct DelayQueueTests {
    private static func at(_ milliseconds: Int) -> MonotonicTime { .zero + .milliseconds(milliseconds) }

    @Test("A packet is due after the delay, and not before")
    func delay() {
        var queue = DelayQueue()
        #expect(queue.due == nil && queue.next(at: Self.at(1000)) == nil)
        #expect(queue.add([1], at: Self.at(10), delay: .milliseconds(50)) == true)
        #expect(queue.due == Self.at(60))
        #expect(queue.next(at: Self.at(59)) == nil)
        #expect(queue.next(at: Self.at(60)) == [1])
        #expect(queue.due == nil)
    }

    @Test("Packets keep their order when the delay becomes shorter, and leave sooner from then on")
    func order() {
        var queue = DelayQueue()
        #expect(queue.add([1], at: Self.at(0), delay: .milliseconds(100)) == true)
        #expect(queue.add([2], at: Self.at(10), delay: .milliseconds(5)) == true)
        #expect(queue.next(at: Self.at(99)) == nil)
        #expect(queue.next(at: Self.at(100)) == [1])
        #expect(queue.next(at: Self.at(100)) == [2])
        #expect(queue.add([3], at: Self.at(110), delay: .milliseconds(5)) == true)
        #expect(queue.due == Self.at(115))
    }

    @Test("A packet that exceeds the limit is dropped, and room is made by packets that leave")
    func limit() {
        var queue = DelayQueue(byteCountMax: 10)
        #expect(queue.add([UInt8](repeating: 1, count: 6), at: Self.at(0), delay: .milliseconds(1)) == true)
        #expect(queue.add([UInt8](repeating: 2, count: 5), at: Self.at(0), delay: .milliseconds(1)) == false)
        #expect(queue.add([UInt8](repeating: 3, count: 4), at: Self.at(0), delay: .milliseconds(1)) == true)
        #expect(queue.next(at: Self.at(1))?.first == 1)
        #expect(queue.add([UInt8](repeating: 4, count: 6), at: Self.at(1), delay: .milliseconds(1)) == true)
        #expect(queue.next(at: Self.at(2))?.first == 3)
        #expect(queue.next(at: Self.at(2))?.first == 4)
    }
}
