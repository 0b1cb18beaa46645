// The other half: the same names, other things.
namespace primerl::testing {

struct OddPair {
  virtual ~OddPair() = default;
  virtual int first() const { return 1; }
  virtual int second() const { return 2; }
};

int odd_pair(const OddPair& pair) { return pair.second(); }
const OddPair& other() {
  static const OddPair pair;
  return pair;
}

}  // namespace primerl::testing
