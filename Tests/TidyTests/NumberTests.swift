import Foundation
import Testing

/// Numbers on the wire are never given twice (D2, D15).
@Suite("Tidy: numbers")
struct NumberTests {
    private func numbers(after mark: String, in files: [SourceTree.File]) -> [(number: String, place: String)] {
        files.flatMap { file in
            file.lines.enumerated().compactMap { index, line -> (String, String)? in
                guard let range = line.range(of: mark) else { return nil }
                let number = line[range.upperBound...].prefix { $0.isHexDigit || $0 == "x" }
                return number.isEmpty ? nil : (String(number), "\(file.path):\(index + 1)")
            }
        }
    }

    private func expectUnique(_ found: [(number: String, place: String)], atLeast count: Int) {
        #expect(found.count >= count, "the numbers are written in another way now")
        var places: [String: String] = [:]
        for (number, place) in found {
            if let other = places.updateValue(place, forKey: number) {
                Issue.record("\(place) and \(other) have the number \(number)")
            }
        }
    }

    @Test("Every method of the program has a number of its own")
    func methods() {
        expectUnique(
            numbers(after: "static var method: UInt16 { ", in: SourceTree.numbered)
                + numbers(after: "static let method: UInt16 = ", in: SourceTree.numbered), atLeast: 15)
    }

    @Test("The list of the contract's requests has each of them, so the authorization matrix has too")
    func requests() throws {
        let contract = SourceTree.sources.filter { $0.path.contains("ApusContract/API/") }
        let list = try #require(contract.first { $0.path.hasSuffix("ClientRequests+All.swift") })
        let listed = list.text.matches(of: /\n +(\w+)\.info,/).map { String($0.1) }
        let declared = contract.flatMap { file in
            file.text.matches(of: /extension (\w+): ClientRequestMessage/).map { String($0.1) }
        }
        #expect(declared.count >= 90, "requests are declared in another way now")
        #expect(declared.sorted() == listed.sorted())
    }

    @Test("Every kind of entity has a number of its own")
    func kinds() {
        let files = SourceTree.numbered.filter { $0.text.contains("EntityKind") }
        expectUnique(
            numbers(after: "EntityKind(rawValue: ", in: files)
                + numbers(
                    after: "Self(rawValue: ",
                    in: files.filter {
                        $0.text.contains("struct EntityKind") || $0.text.contains("extension EntityKind")
                    }),
            atLeast: 3)
    }
}
