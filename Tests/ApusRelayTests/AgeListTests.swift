import ApusRelay
import Testing

@Suite("Places by their age")
struct AgeListTests {
    private func places(_ list: AgeList) -> [Int] {
        var all: [Int] = []
        var place = list.oldest
        while let next = place, all.count <= list.count {
            all.append(next)
            place = list.next(after: next)
        }
        return all
    }

    @Test("The order is that of adding, whatever is taken out and added again")
    func order() {
        var list = AgeList()
        #expect(list.oldest == nil)
        for place in [7, 2, 9, 0] { list.append(place) }
        list.append(9)
        #expect(places(list) == [7, 2, 9, 0])
        list.remove(2)
        list.remove(7)
        list.remove(7)
        list.remove(1_000)
        #expect(places(list) == [9, 0] && list.count == 2)
        list.append(7)
        list.remove(0)
        #expect(places(list) == [9, 7])
        #expect(list.contains(7) && !list.contains(0) && !list.contains(1_000))
        list.remove(9)
        list.remove(7)
        #expect(list.oldest == nil && list.count == 0)
        list.append(3)
        #expect(places(list) == [3])
    }

    @Test("It is what an array would be", arguments: 0..<20 as Range<UInt64>)
    func random(seed: UInt64) {
        var state = seed &* 2_862_933_555_777_941_757 | 1
        var list = AgeList()
        var model: [Int] = []
        for _ in 0..<500 {
            state = state &* 6_364_136_223_846_793_005 &+ 1_442_695_040_888_963_407
            let place = Int(state >> 33) % 16
            if state >> 60 < 8 {
                if !model.contains(place) { model.append(place) }
                list.append(place)
            } else {
                model.removeAll { $0 == place }
                list.remove(place)
            }
            #expect(places(list) == model && list.count == model.count)
        }
    }
}
