import ApusCore
import ApusSessions
import Testing

@Suite("What a former owner says (D4)")
struct OwnerMessagesTests {
    private let shard = ShardID(key: "cam")

    @Test("A word is dropped where the map, or the next owner, showed a later epoch")
    func former() {
        var words = OwnerMessages()
        func takes(_ epoch: Epoch, map: Epoch) -> Bool { words.takes(epoch, of: shard, known: map) }
        #expect(takes(4, map: 4))
        #expect(!takes(3, map: 4), "the map is later")
        // The next owner speaks before the map arrives.
        #expect(takes(5, map: 4))
        #expect(!takes(4, map: 4), "the next owner has spoken")
        #expect(takes(5, map: 4) && takes(5, map: 5))
        #expect(!takes(4, map: 5))
        let isOtherTaken = words.takes(3, of: ShardID(key: "other"), known: 3)
        #expect(isOtherTaken, "another shard")
    }

    @Test("A node that says no epoch is believed as before")
    func old() {
        var words = OwnerMessages()
        let isTaken = words.takes(0, of: shard, known: 9)
        #expect(isTaken)
    }
}
