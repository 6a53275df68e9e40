import ApusCluster
import ApusCore
import ApusSessions
import Testing

@Suite("What a former owner says (D4)")
struct OwnerWordsTests {
    private let shard = ShardID(key: "cam")

    @Test("A word is dropped where the map, or the next owner, showed a later epoch")
    func former() {
        var words = OwnerWords()
        #expect(words.takes(4, of: shard, known: 4))
        #expect(!words.takes(3, of: shard, known: 4), "the map is later")
        // The next owner speaks before the map arrives.
        #expect(words.takes(5, of: shard, known: 4))
        #expect(!words.takes(4, of: shard, known: 4), "the next owner has spoken")
        #expect(words.takes(5, of: shard, known: 4) && words.takes(5, of: shard, known: 5))
        #expect(!words.takes(4, of: shard, known: 5))
        #expect(words.takes(3, of: ShardID(key: "other"), known: 3), "another shard")
    }

    @Test("A node that says no epoch is believed as before")
    func old() {
        var words = OwnerWords()
        #expect(words.takes(0, of: shard, known: 9))
    }
}
