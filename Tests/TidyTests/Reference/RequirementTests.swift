import ApusCore
import Testing

@Suite("Tidy: requirements and their tests")
struct RequirementTests {
    @Test(
        "Each requirement that is built has a test that cites it, and none that is not",
        arguments: Requirements.rows.map(\.id))
    func cited(id: String) throws {
        let row = try #require(Requirements.rows.first { $0.id == id })
        let tests = Requirements.tests(citing: id)
        #expect(tests.isEmpty == row.isMissing, "\(id): \(tests.map(\.name))")
    }

    @Test(
        "Each number of the contract is expected by a test with a real cluster",
        arguments: Requirements.numbers + Requirements.callNumbers)
    func expected(number: Int32) {
        #expect(!Requirements.suites(expecting: number).isEmpty, "\(ErrorCode(number: number))")
    }

    @Test("An id is cited by itself, in a list and in a range, and not by a longer one")
    func citations() {
        for name in ["x (IV-D5)", "x (IV-A1, IV-D5)", "x (IV-D1 to IV-D10)"] {
            #expect(Requirements.cites(name, "IV-D5"))
        }
        for name in ["x (IV-D50)", "x (IV-E5)", "x (IV-D6 to IV-D10)", "x"] {
            #expect(!Requirements.cites(name, "IV-D5"))
        }
        #expect(Set(Requirements.numbers).count == 48)
    }
}
