import ApusRelay
import ApusTraversal
import Testing

@Suite("The flat table of addresses (D8)")
struct FlatTableTests {
    private func key(_ number: UInt64) -> FlatTable.Key {
        FlatTable.Key(TransportAddress(v4: UInt32(number >> 3), port: UInt16(number & 7) + 1), scope: 2)
    }

    @Test("It answers as a dictionary does, whatever is set and removed", arguments: 0..<20 as Range<UInt64>)
    func model(seed: UInt64) {
        var table = FlatTable(countMax: 4_096, seed: seed &* 77)
        var model: [UInt64: UInt32] = [:]
        var state = seed &+ 1
        // Counted, since a million single expectations take minutes.
        var wrong = 0
        for step in 0..<20_000 as Range<UInt32> {
            state = state &* 6_364_136_223_846_793_005 &+ 1_442_695_040_888_963_407
            let number = (state >> 33) % 600
            if state >> 20 & 1 == 0 {
                if !table.set(step, for: key(number)) { wrong += 1 }
                model[number] = step
            } else {
                let removed = table.remove(key(number))
                let expected = model.removeValue(forKey: number) ?? FlatTable.none
                if removed != expected { wrong += 1 }
            }
            let other = (state >> 13) % 600
            if table.value(for: key(other)) != model[other] ?? FlatTable.none { wrong += 1 }
        }
        let count = table.count
        #expect(wrong == 0)
        #expect(count == model.count)
        for number in 0..<600 as Range<UInt64> {
            let found = table.value(for: key(number))
            #expect(found == model[number] ?? FlatTable.none)
        }
    }

    @Test("It refuses new keys at its bound, keeps the old ones, and has room again after a removal")
    func bound() {
        var table = FlatTable(countMax: 100, seed: 9)
        var areTaken: [Bool] = []
        for number in 0..<101 as Range<UInt64> { areTaken.append(table.set(UInt32(number), for: key(number))) }
        #expect(areTaken == Array(repeating: true, count: 100) + [false])
        let isReplaced = table.set(7, for: key(50))
        let replaced = table.value(for: key(50))
        #expect(isReplaced && replaced == 7)
        table.remove(key(3))
        let isTaken = table.set(1, for: key(100))
        let count = table.count
        #expect(isTaken && count == 100)
    }

    @Test("The same address is another key in another scope, with another port and in the other family")
    func scopes() {
        var table = FlatTable(countMax: 100, seed: 1)
        let address = TransportAddress(v4: 1, port: 5)
        let isSet = table.set(1, for: FlatTable.Key(address, scope: 0))
        let others = [
            table.value(for: FlatTable.Key(address, scope: 1)),
            table.value(for: FlatTable.Key(address.withPort(6), scope: 0)),
            table.value(for: FlatTable.Key(TransportAddress(v6High: 0, low: 1, port: 5), scope: 0)),
        ]
        #expect(isSet)
        #expect(others == Array(repeating: FlatTable.none, count: 3))
        #expect(FlatTable.Key(address, scope: 3).host == FlatTable.Key(address.host, scope: 3))
    }
}
