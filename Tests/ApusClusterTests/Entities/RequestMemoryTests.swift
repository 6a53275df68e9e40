import ApusCluster
import ApusCore
import Testing

@Suite("What an entity answered to requests with an id (D15)")
struct RequestMemoryTests {
    private func id(_ number: UInt64) -> RequestID { RequestID(high: 7, low: number) }

    @Test("A request is new once, under way until it ends, and answered from then on")
    func once() {
        var memory = RequestMemory()
        #expect(memory.begin(id(1)) == .new)
        #expect(memory.begin(id(1)) == .underWay)
        #expect(memory.begin(id(2)) == .new)
        memory.end(id(1), .reply([1, 2]))
        #expect(memory.begin(id(1)) == .answered(.reply([1, 2])))
        #expect(memory.begin(id(2)) == .underWay)
    }

    @Test("A failure of the handler is an answer as well")
    func failure() {
        var memory = RequestMemory()
        #expect(memory.begin(id(1)) == .new)
        memory.end(id(1), .failure(code: 8023, message: "the device is bound to another user"))
        #expect(
            memory.begin(id(1)) == .answered(.failure(code: 8023, message: "the device is bound to another user")))
    }

    @Test("A request that was given up may come again")
    func givenUp() {
        var memory = RequestMemory()
        #expect(memory.begin(id(1)) == .new)
        memory.giveUp(id(1))
        #expect(memory.begin(id(1)) == .new)
        #expect(memory.count == 0)
    }

    @Test("Another request with the same key is none of these: it is refused while the first is stored or in progress")
    func otherRequest() {
        let key = RequestID.Key(high: 7, low: 1)
        let (first, other) = (RequestID(key: key, digest: 1), RequestID(key: key, digest: 2))
        #expect(first.key == other.key && first != other)
        var memory = RequestMemory()
        #expect(memory.begin(first) == .new)
        #expect(memory.begin(other) == .isOfAnother)
        #expect(memory.begin(first) == .underWay)
        memory.end(first, .reply([1]))
        #expect(memory.begin(other) == .isOfAnother)
        #expect(memory.begin(first) == .answered(.reply([1])))
        // Also after the state was stored and read.
        var read = RequestMemory(carried: memory.carried)
        #expect(read == memory && read.begin(other) == .isOfAnother)
        // A request that was not carried out leaves its id to others.
        #expect(memory.begin(id(2)) == .new)
        memory.giveUp(id(2))
        #expect(memory.begin(RequestID(key: id(2).key, digest: 9)) == .new)
    }

    @Test("The oldest answers leave at the bound of their number")
    func countBound() {
        var configuration = RequestMemory.Configuration()
        configuration.countMax = 3
        var memory = RequestMemory(configuration: configuration)
        for number in 1...5 {
            #expect(memory.begin(id(UInt64(number))) == .new)
            memory.end(id(UInt64(number)), .reply([UInt8(number)]))
        }
        #expect(memory.carried.map(\.id.low) == [3, 4, 5])
        #expect(memory.begin(id(1)) == .new)
        #expect(memory.begin(id(3)) == .answered(.reply([3])))
    }

    @Test("The oldest answers leave at the bound of their bytes; one that is over it alone is not kept, but was given")
    func byteBound() {
        var configuration = RequestMemory.Configuration()
        configuration.byteCountMax = 10
        var memory = RequestMemory(configuration: configuration)
        for number: UInt64 in 1...3 { memory.end(id(number), .reply([0, 0, 0, 0])) }
        #expect(memory.carried.map(\.id.low) == [2, 3])
        memory.end(id(4), .reply([UInt8](repeating: 0, count: 11)))
        #expect(memory.begin(id(4)) == .answered(.notKept))
        #expect(memory.carried.map(\.id.low) == [2, 3, 4])
    }

    @Test("What a state carries is what the next owner knows; a request under way is new there")
    func carried() {
        var memory = RequestMemory()
        for number: UInt64 in 1...20 { memory.end(id(number), .reply([UInt8(number)])) }
        #expect(memory.begin(id(99)) == .new)
        var next = RequestMemory(carried: memory.carried)
        #expect(next.carried.map(\.id) == memory.carried.map(\.id))
        #expect(next.begin(id(20)) == .answered(.reply([20])))
        #expect(next.begin(id(99)) == .new)
    }

    @Test("A state with more than the bounds allow, or with an id twice, is taken within them")
    func carriedTooMuch() {
        var configuration = RequestMemory.Configuration()
        configuration.countMax = 2
        let carried: [(id: RequestID, answer: RequestMemory.Answer)] = [
            (id(1), .reply([1])), (id(2), .reply([2])), (id(1), .reply([3])), (id(3), .notKept),
        ]
        var memory = RequestMemory(configuration: configuration, carried: carried)
        #expect(memory.carried.map(\.id.low) == [1, 3])
        #expect(memory.begin(id(1)) == .answered(.reply([3])))
    }

    @Test(
        "Over any sequence an id is carried out once while its answer is kept, and the bounds hold", arguments: 0..<200)
    func any(seed: Int) {
        var random = SeededRandom(seed: UInt64(seed))
        var configuration = RequestMemory.Configuration()
        (configuration.countMax, configuration.byteCountMax) = (8, 64)
        var memory = RequestMemory(configuration: configuration)
        var underWay: Set<UInt64> = []
        for _ in 0..<500 {
            let number = UInt64.random(in: 0..<24, using: &random)
            switch Int.random(in: 0..<4, using: &random) {
            case 0, 1:
                let finding = memory.begin(id(number))
                #expect((finding == .underWay) == underWay.contains(number))
                if finding == .new { underWay.insert(number) }
            case 2 where underWay.contains(number):
                let count = Int.random(in: 0..<80, using: &random)
                memory.end(id(number), .reply([UInt8](repeating: UInt8(number), count: count)))
                underWay.remove(number)
                #expect(memory.begin(id(number)) != .new)
            case 3 where underWay.contains(number):
                memory.giveUp(id(number))
                underWay.remove(number)
            default:
                memory = RequestMemory(configuration: configuration, carried: memory.carried)
                underWay = []
            }
            #expect(memory.count <= 8)
            let byteCount = memory.carried.reduce(0) { sum, entry in
                if case .reply(let bytes) = entry.answer { sum + bytes.count } else { sum }
            }
            #expect(byteCount <= 64)
        }
    }
}
