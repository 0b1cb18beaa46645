// Half of a pair that must be found: see definitions_test.cc. Linked into nothing.
namespace primerl::testing {

struct OddPair {
  virtual ~OddPair() = default;
  virtual int first() const { return 1; }
};

int odd_pair(const OddPair& pair) { return pair.first(); }
const OddPair& one() {
  static const OddPair pair;
  return pair;
}

}  // namespace primerl::testing
