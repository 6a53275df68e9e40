import ApusCluster
import ApusCore
import Testing

@Suite("What an entity answered to requests with an id (D15)")
struct RequestMemoryTests {
    private func id(_ number: UInt64) -> RequestID { RequestID(high: 7, low: number) }

    @Test("A request is new until it was carried out, and answered from then on")
    func once() {
        var memory = RequestMemory()
        for _ in 0..<2 { #expect(memory.find(id(1)) == .new) }
        #expect(memory.count == 0)
        memory.remember(id(1), .reply([1, 2]))
        for _ in 0..<2 { #expect(memory.find(id(1)) == .answered(.reply([1, 2]))) }
        #expect(memory.find(id(2)) == .new)
    }

    @Test("A failure of the handler is an answer as well")
    func failure() {
        var memory = RequestMemory()
        memory.remember(id(1), .failure(code: 8023, message: "the device is bound to another user"))
        #expect(
            memory.find(id(1)) == .answered(.failure(code: 8023, message: "the device is bound to another user")))
    }

    @Test("Another request with the same key is neither: it is refused while the answer to the first is stored")
    func otherRequest() {
        let key = RequestID.Key(high: 7, low: 1)
        let (first, other) = (RequestID(key: key, digest: 1), RequestID(key: key, digest: 2))
        #expect(first.key == other.key && first != other)
        var memory = RequestMemory()
        memory.remember(first, .reply([1]))
        #expect(memory.find(other) == .isOfAnother)
        #expect(memory.find(first) == .answered(.reply([1])))
        // Also after the state was stored and read.
        let read = RequestMemory(carried: memory.carried)
        #expect(read == memory && read.find(other) == .isOfAnother)
    }

    @Test("The oldest answers leave at the bound of their number")
    func countBound() {
        var configuration = RequestMemory.Configuration()
        configuration.countMax = 3
        var memory = RequestMemory(configuration: configuration)
        for number in 1...5 {
            #expect(memory.find(id(UInt64(number))) == .new)
            memory.remember(id(UInt64(number)), .reply([UInt8(number)]))
        }
        #expect(memory.carried.map(\.id.low) == [3, 4, 5])
        #expect(memory.find(id(1)) == .new)
        #expect(memory.find(id(3)) == .answered(.reply([3])))
    }

    @Test("The oldest answers leave at the bound of their bytes; one that is over it alone is not kept, but was given")
    func byteBound() {
        var configuration = RequestMemory.Configuration()
        configuration.byteCountMax = 10
        var memory = RequestMemory(configuration: configuration)
        for number: UInt64 in 1...3 { memory.remember(id(number), .reply([0, 0, 0, 0])) }
        #expect(memory.carried.map(\.id.low) == [2, 3])
        memory.remember(id(4), .reply([UInt8](repeating: 0, count: 11)))
        #expect(memory.find(id(4)) == .answered(.notKept))
        #expect(memory.carried.map(\.id.low) == [2, 3, 4])
    }

    @Test("What a state carries is what the next owner knows")
    func carried() {
        var memory = RequestMemory()
        for number: UInt64 in 1...20 { memory.remember(id(number), .reply([UInt8(number)])) }
        let next = RequestMemory(carried: memory.carried)
        #expect(next.carried.map(\.id) == memory.carried.map(\.id))
        #expect(next.find(id(20)) == .answered(.reply([20])))
        #expect(next.find(id(99)) == .new)
    }

    @Test("A state with more than the bounds allow, or with an id twice, is taken within them")
    func carriedTooMuch() {
        var configuration = RequestMemory.Configuration()
        configuration.countMax = 2
        let carried: [(id: RequestID, answer: RequestMemory.Answer)] = [
            (id(1), .reply([1])), (id(2), .reply([2])), (id(1), .reply([3])), (id(3), .notKept),
        ]
        let memory = RequestMemory(configuration: configuration, carried: carried)
        #expect(memory.carried.map(\.id.low) == [1, 3])
        #expect(memory.find(id(1)) == .answered(.reply([3])))
    }

    @Test(
        "Over any sequence an id is carried out once while its answer is kept, and the bounds hold", arguments: 0..<200)
    func any(seed: Int) {
        var random = SeededRandom(seed: UInt64(seed))
        var configuration = RequestMemory.Configuration()
        (configuration.countMax, configuration.byteCountMax) = (8, 64)
        var memory = RequestMemory(configuration: configuration)
        for _ in 0..<500 {
            let number = UInt64.random(in: 0..<24, using: &random)
            let isStored = memory.carried.contains { $0.id == id(number) }
            #expect((memory.find(id(number)) == .new) == !isStored)
            if isStored, Int.random(in: 0..<4, using: &random) == 0 {
                memory = RequestMemory(configuration: configuration, carried: memory.carried)
                #expect(memory.find(id(number)) != .new)
            } else if !isStored {
                let count = Int.random(in: 0..<80, using: &random)
                memory.remember(id(number), .reply([UInt8](repeating: UInt8(number), count: count)))
                #expect(memory.find(id(number)) != .new)
            }
            #expect(memory.count <= 8)
            let byteCount = memory.carried.reduce(0) { sum, entry in
                if case .reply(let bytes) = entry.answer { sum + bytes.count } else { sum }
            }
            #expect(byteCount <= 64)
        }
    }
}
