import ApusGrammar
import Testing

@Suite("Words and numbers of a text")
struct TextNormalizerTests {
    static func words(_ text: String, _ language: GrammarLanguage) -> String {
        TextNormalizer(language).words(text).map(\.text).joined(separator: "|")
    }

    /// The longest number at the start of a text as tenths; nil if it has others behind it.
    static func spans(_ text: String, _ language: GrammarLanguage) -> [NumberSpan] {
        language.spans(in: TextNormalizer(language).words(text), from: 0)
    }

    static func number(_ text: String, _ language: GrammarLanguage) -> Int? {
        let words = TextNormalizer(language).words(text)
        let whole = language.spans(in: words, from: 0).filter { $0.end == words.count && !$0.isPercent }
        return whole.count == 1 ? whole[0].tenths : nil
    }

    @Test(
        "English text becomes words",
        arguments: [
            ("Turn ON the  Light!", "turn|on|the|light"), ("what's the time?", "whats|the|time"),
            ("What’s up", "whats|up"), ("7 o'clock", "7|oclock"), ("it is 7 a.m.", "it|is|7|am"),
            ("7:30 p.m. today", "7|30|pm|today"), ("e-mail", "e|mail"), ("twenty-five", "twenty|five"),
            ("50%", "50|percent"), ("50 %", "50|percent"), ("21°C", "21|degrees|c"), ("21 ℃", "21|degrees"),
            ("1,000 steps", "1000|steps"), ("1,00", "1|0"), ("21.5 degrees", "21.5|degrees"), ("21.0", "21"),
            ("7.30", "7|30"), ("1.2.3", "1|2.3"), ("007", "7"), ("-5", "minus|5"), ("set to -5", "set|to|minus|5"),
            ("3-5", "3|5"), ("30s", "30|s"), ("mp3", "mp|3"), ("99999", "99999"), ("ＦＵＬＬ　ｗｉｄｔｈ １２", "full|width|12"),
            ("Café", "cafe"), ("Cafe\u{301}", "cafe"), ("ﬁsh", "fish"), ("Straße", "strasse"), ("Ł", "l"),
            ("you & me", "you|and|me"), ("🔥 fire 🔥", "fire"), ("", ""), ("  ...!?", ""), ("U.S.A", "usa"),
            ("end. Start", "end|start"), ("zero\u{200b}width", "zerowidth"),
        ])
    func english(text: String, words: String) { #expect(Self.words(text, .english) == words) }

    @Test(
        "Chinese text becomes characters, and spaces mean nothing",
        arguments: [
            ("打开 客厅 的灯。", "打|开|客|厅|的|灯"), ("打开客厅的灯", "打|开|客|厅|的|灯"), ("５０％", "50|%"),
            ("调到50%", "调|到|50|%"), ("２６℃", "26|度"), ("20°C", "20|度|c"), ("Wi-Fi 开关", "wi|fi|开|关"),
            ("7：30", "7|30"), ("，、！", ""), ("-5度", "负|5|度"), ("二〇二五", "二|〇|二|五"),
        ])
    func chinese(text: String, words: String) { #expect(Self.words(text, .chinese) == words) }

    @Test("A normalized word stays the same, for each character of Unicode")
    func idempotent() {
        let normalizer = TextNormalizer(.english)
        for scalar in (UInt32(0)...0x2ffff).compactMap(Unicode.Scalar.init) {
            let words = normalizer.words(String(scalar)).map(\.text)
            let again = normalizer.words(words.joined(separator: " ")).map(\.text)
            if words != again { Issue.record("U+\(String(scalar.value, radix: 16)): \(words), \(again)") }
        }
    }

    @Test("Each word has its place in the text")
    func places() {
        let text = "Öffne 50% 灯"
        let words = TextNormalizer(.english).words(text)
        let bytes = Array(text.utf8)
        #expect(words.map { String(decoding: bytes[$0.range], as: UTF8.self) } == ["Öffne", "50", "%", "灯"])
    }

    @Test(
        "English numbers",
        arguments: [
            ("zero", 0), ("one", 10), ("twelve", 120), ("twenty", 200), ("twenty five", 250), ("ninety-nine", 990),
            ("a hundred", 1000), ("one hundred", 1000), ("two hundred and five", 2050), ("three hundred sixty", 3600),
            ("twelve hundred", 12_000), ("a thousand", 10_000), ("nine thousand nine hundred and ninety nine", 99_990),
            ("two thousand and one", 20_010), ("one thousand two hundred", 12_000), ("2 thousand", 20_000),
            ("half", 5), ("two and a half", 25), ("twenty point five", 205), ("zero point o", 0), ("oh five", 50),
            ("minus five", -50), ("negative two", -20), ("-5", -50), ("21.5", 215), ("1,234", 12_340), ("42", 420),
            ("one hundred and a half", 1005),
        ])
    func englishNumbers(text: String, tenths: Int) { #expect(Self.number(text, .english) == tenths) }

    @Test(
        "English words that are no number",
        arguments: [
            "and", "hundred", "a", "oh", "point five", "five twenty", "twenty twenty", "ten five", "twenty zero",
            "minus", "minus zero", "one two", "hundred five", "five and", "10000", "ten thousand", "five and six",
            "one hundred two hundred",
        ])
    func noEnglishNumbers(text: String) { #expect(Self.number(text, .english) == nil) }

    @Test(
        "Chinese numbers",
        arguments: [
            ("零", 0), ("一", 10), ("两", 20), ("十", 100), ("十五", 150), ("二十", 200), ("二十五", 250),
            ("一百", 1000), ("一百二十", 1200), ("一百零五", 1050), ("一百一十五", 1150), ("一百二", 1200),
            ("两百五", 2500), ("两千", 20_000), ("三千零二", 30_020), ("九千九百九十九", 99_990), ("二零二五", 20_250),
            ("二〇二五", 20_250), ("零五", 50), ("半", 5), ("二十点五", 205), ("负五", -50), ("零下十", -100),
            ("26", 260), ("２６．５", 265), ("一千五", 15_000),
        ])
    func chineseNumbers(text: String, tenths: Int) { #expect(Self.number(text, .chinese) == tenths) }

    @Test("Chinese characters that are no number", arguments: ["百", "点五", "十十", "负", "一百百", "一零百", "万"])
    func noChineseNumbers(text: String) { #expect(Self.number(text, .chinese) == nil) }

    @Test("Chinese percentages are numbers of percent", arguments: ["百分之五十", "50%", "五十%", "百分之50"])
    func percent(text: String) {
        let words = TextNormalizer(.chinese).words(text)
        #expect(Self.spans(text, .chinese).contains(NumberSpan(end: words.count, tenths: 500, isPercent: true)))
    }

    @Test("Every number from 0 to 9999, and its negative, is read as it is spelled")
    func spelling() {
        for language in [GrammarLanguage.english, .chinese] {
            for number in stride(from: -9999, through: 9999, by: 7) {
                for way in language.spelled(number) {
                    let words = way.map { TextWord($0) }
                    let spans = language.spans(in: words, from: 0)
                    #expect(
                        spans.contains(NumberSpan(end: words.count, tenths: number * 10)),
                        "\(language): \(number) is \(way)")
                }
            }
        }
    }

    @Test("A text has all readings of its numbers")
    func readings() {
        #expect(Set(Self.spans("twenty five", .english).map(\.tenths)) == [200, 250])
        #expect(Set(Self.spans("二十五", .chinese).map(\.tenths)) == [20, 200, 250])
        #expect(Set(Self.spans("two hundred and five", .english).map(\.tenths)) == [20, 2000, 2050])
    }

    @Test("Words of other languages than English and Chinese have digits as numbers")
    func digits() {
        let german = GrammarLanguage("de")
        #expect(Self.words("Zwölf -5 %", german) == "zwolf|minus|5|%")
        #expect(Self.number("-5", german) == -50)
        #expect(Self.number("five", german) == nil)
        #expect(Self.words("L’album d'Anna", GrammarLanguage("fr")) == "l|album|d|anna")
        #expect(german.spelled(12) == [["12"]])
    }
}
