import ApusCore
import ApusObjectStore
import Testing

/// What every store promises: the same steps for a directory and for S3.
enum ObjectStorePromises {
    static func bytes(_ count: Int, seed: UInt64 = 1) -> [UInt8] {
        var generator = SeededRandom(seed: seed)
        return (0..<count).map { _ in UInt8.random(in: 0...255, using: &generator) }
    }

    /// Puts, reads in ranges, looks up and deletes objects.
    static func expectObjects(_ store: some ObjectStore, _ prefix: String, size: Int = 100_000) async throws {
        let (name, content) = (try ObjectName("\(prefix)/one=1/x.mp4"), bytes(size))
        #expect(try await store.head(name) == nil)
        #expect(try await store.get(name, range: nil) == nil)
        let put = try await store.put(name, ObjectContent(content))
        let head = try #require(try await store.head(name))
        #expect(put == .stored(head) && head.byteCount == size && !head.tag.isEmpty)
        #expect(abs(head.modifiedMilliseconds - WallClock.milliseconds()) < 60_000)
        let whole = try #require(try await store.get(name, range: nil))
        #expect(whole.bytes == content && whole.offset == 0 && whole.head == head)
        for range in [0..<1, 0..<size, size - 1..<size, 10..<90, size / 2..<size + 50, 1..<Int.max] {
            let part = try #require(try await store.get(name, range: range))
            #expect(part.bytes == Array(content[range.clamped(to: 0..<size)]) && part.offset == range.lowerBound)
        }
        for range in [size..<size + 1, size + 9..<size + 10, 5..<5] {
            #expect(try #require(try await store.get(name, range: range)).bytes.isEmpty, "\(range)")
        }
        await #expect(throws: ApusError(.badParameter)) { try await store.get(name, range: -1..<1) }
        let empty = try ObjectName("\(prefix)/empty")
        guard case .stored(let nothing) = try await store.put(empty, ObjectContent([])) else {
            Issue.record("an empty object is not stored")
            return
        }
        #expect(nothing.byteCount == 0)
        #expect(try await store.get(empty, range: nil)?.bytes.isEmpty == true)
        for _ in 0..<2 {
            try await store.delete(name)
            #expect(try await store.head(name) == nil)
        }
        #expect(try await store.head(empty) != nil)
        try await store.delete(empty)
    }

    /// Puts of a name that is taken say so, and change nothing.
    static func expectNothingReplaced(_ store: some ObjectStore, _ prefix: String) async throws {
        let (name, content) = (try ObjectName("\(prefix)/kept"), bytes(5_000, seed: 2))
        guard case .stored(let head) = try await store.put(name, ObjectContent(content)) else {
            Issue.record("not stored")
            return
        }
        #expect(try await store.put(name, ObjectContent(content)) == .exists(head, isSame: true))
        for other in [bytes(5_000, seed: 3), bytes(4_999, seed: 2), [], bytes(6_000)] {
            #expect(try await store.put(name, ObjectContent(other)) == .exists(head, isSame: false))
        }
        #expect(try await store.get(name, range: nil)?.bytes == content)
        // A name that continues another one is another object.
        let longer = try ObjectName("\(prefix)/kept/x")
        guard case .stored = try await store.put(longer, ObjectContent([1])) else {
            Issue.record("the longer name is not stored")
            return
        }
        #expect(try await store.get(name, range: nil)?.bytes == content)
    }

    /// Of several puts of one name at the same time, one stores its content.
    static func expectOneWinner(_ stores: [any ObjectStore], _ prefix: String, rounds: Int) async throws {
        for round in 0..<rounds {
            let name = try ObjectName("\(prefix)/race/\(round)")
            let outcomes = await withTaskGroup(of: (Int, Result<ObjectPut, ApusError>).self) { group in
                for index in 0..<6 {
                    group.addTask {
                        let content = ObjectContent(bytes(700, seed: UInt64(index)))
                        do throws(ApusError) {
                            return (index, .success(try await stores[index % stores.count].put(name, content)))
                        } catch {
                            return (index, .failure(error))
                        }
                    }
                }
                return await group.reduce(into: [(Int, Result<ObjectPut, ApusError>)]()) { $0.append($1) }
            }
            var winners: [Int] = []
            for (index, outcome) in outcomes {
                switch try outcome.get() {
                case .stored: winners.append(index)
                case .exists(_, let isSame): #expect(!isSame)
                }
            }
            #expect(winners.count == 1, "round \(round): \(winners)")
            let found = try await stores[0].get(name, range: nil)?.bytes
            #expect(found == bytes(700, seed: UInt64(winners.first ?? 99)))
        }
    }

    /// Lists names by prefixes and pages, in the order of their bytes.
    static func expectLists(
        _ store: some ObjectStore, _ prefix: String, pages: [Int] = [1, 2, 3, 5, 1_000]
    ) async throws {
        let texts = ["a", "a-1", "a.b", "a/b", "a/b-1", "a/b/c", "a/b=", "a/bc/1", "a/bc/2", "ab", "b/1", "c"]
        let names = try texts.map { try ObjectName("\(prefix)/\($0)") }.sorted()
        for name in names.shuffled() {
            guard case .stored = try await store.put(name, ObjectContent(bytes(name.text.utf8.count))) else {
                Issue.record("\(name) is not stored")
                continue
            }
        }
        for (start, wanted) in [
            ("", names), ("a/", names.filter { $0.text.hasPrefix("\(prefix)/a/") }),
            ("a/b", names.filter { $0.text.hasPrefix("\(prefix)/a/b") }), ("x", []), ("b/1", [names[10]]),
        ] {
            for countMax in pages {
                var (found, after): ([ObjectEntry], ObjectName?) = ([], nil)
                repeat {
                    let page = try await store.list(prefix: "\(prefix)/\(start)", after: after, countMax: countMax)
                    #expect(page.entries.count <= countMax)
                    found += page.entries
                    after = page.next
                } while after != nil
                #expect(found.map(\.name) == wanted, "\(start) in pages of \(countMax)")
                #expect(found.allSatisfy { $0.byteCount == $0.name.text.utf8.count })
            }
        }
        let rest = try await store.list(prefix: "\(prefix)/", after: names[4], countMax: nil)
        #expect(rest.entries.map(\.name) == Array(names[5...]) && rest.next == nil)
        // Behind a name that is not there.
        let between = try await store.list(prefix: "\(prefix)/", after: try ObjectName("\(prefix)/a/b/a"), countMax: 1)
        #expect(between.entries.map(\.name.text) == ["\(prefix)/a/b/c"])
        for name in names { try await store.delete(name) }
        #expect(try await store.list(prefix: "\(prefix)/", after: nil, countMax: nil).entries.isEmpty)
    }

    static func expectSizeBound(_ store: some ObjectStore) async throws {
        let name = try ObjectName("large")
        let content = ObjectContent(byteCount: store.limits.objectByteCountMax + 1) { range throws(ApusError) in
            [UInt8](repeating: 0, count: range.count)
        }
        await #expect(throws: ApusError(.frameTooLarge)) { try await store.put(name, content) }
        let short = ObjectContent(byteCount: 100) { _ throws(ApusError) in [1, 2, 3] }
        await #expect(throws: ApusError(.internalFailure)) { try await store.put(name, short) }
        let failing = ObjectContent(byteCount: 100) { _ throws(ApusError) in throw ApusError(.noRoute) }
        await #expect(throws: ApusError(.noRoute)) { try await store.put(name, failing) }
        #expect(try await store.head(name) == nil)
    }
}
